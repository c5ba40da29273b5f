//! Sizes of the images' archives, if they were made on this machine.

use anyhow::Result;

use crate::table::{Goal, Row, Table};

/// Goal for each image but the sandbox's, in MB.
const GOAL_MB: f64 = 30.0;

/// Adds the rows.
///
/// # Errors
/// When the cache has no place.
#[expect(clippy::cast_precision_loss, reason = "sizes of images are far below 2^52")]
pub fn rows(table: &mut Table) -> Result<()> {
    let folder = cadre_e2e::cache::root()?.join("images");
    table.section("images: archives as they are loaded");
    for (image, goal) in
        [("operator", Some(GOAL_MB)), ("api-server", Some(GOAL_MB)), ("agent", Some(GOAL_MB)), ("sandbox", None)]
    {
        let size = std::fs::metadata(folder.join(format!("{image}.tar"))).ok();
        let megabytes = size.map(|size| size.len() as f64 / 1e6);
        table.push(Row::less(image, "MB").own(megabytes).goal(goal.map(Goal::AtMost)));
    }
    Ok(())
}
