//! The control plane for tests comes up, serves, and ends with its owner.

use cadre_e2e::ControlPlane;

#[test]
fn it_serves_and_leaves_nothing() {
    let plane = ControlPlane::start().unwrap();
    let output = plane.kubectl().unwrap().args(["create", "configmap", "sample"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kubeconfig = plane.kubeconfig();
    assert!(kubeconfig.exists());
    drop(plane);
    assert!(!kubeconfig.exists());
}

#[test]
fn tests_of_one_binary_share_one() {
    let first = ControlPlane::shared().unwrap().kubeconfig();
    // The thread that started it ends before the second use.
    let second = std::thread::spawn(|| ControlPlane::shared().unwrap().kubeconfig()).join().unwrap();
    assert_eq!(first, second);
    assert!(
        ControlPlane::shared().unwrap().kubectl().unwrap().args(["get", "nodes"]).output().unwrap().status.success()
    );
}
