//! Domain values in the shapes that clients read.
