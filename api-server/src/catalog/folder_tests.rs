use super::*;

const MODEL: &str =
    "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {name: m}\nspec: {provider: Scripted, model: x}\n";

fn agent(instructions: &str) -> String {
    format!(
        "apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {{name: a}}\n\
         spec: {{modelRef: {{name: m}}, instructions: {instructions}}}\n"
    )
}

fn instructions(catalog: &FolderCatalog) -> String {
    let agent = catalog.agent(&ComponentRef::agent("default", "a")).unwrap();
    agent.snapshot().unwrap().instructions.clone()
}

/// Puts a file into its place as a whole: whoever looks meanwhile must not find half of it.
fn put(path: &Path, text: &str) {
    let whole = path.with_extension("new");
    std::fs::write(&whole, text).unwrap();
    std::fs::rename(whole, path).unwrap();
}

#[test]
fn a_file_that_can_not_be_read_is_told_like_a_wrong_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.yaml"), MODEL).unwrap();
    let catalog = FolderCatalog::open(folder.path(), "default").unwrap();
    let problems = catalog.problems();
    std::fs::write(folder.path().join("b.yaml"), [0xff, 0xfe]).unwrap();
    assert!(catalog.reload().is_err());
    assert!(problems.borrow()[0].message.starts_with("can't be read"), "{:?}", problems.borrow());
    std::fs::remove_file(folder.path().join("b.yaml")).unwrap();
    catalog.reload().unwrap();
    assert!(problems.borrow().is_empty());
}

#[test]
fn a_file_that_is_too_large_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.yaml"), MODEL).unwrap();
    let large = folder.path().join("large.yaml");
    std::fs::File::create(&large).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let refused = FolderCatalog::open(folder.path(), "default").err().unwrap();
    let FolderError::Problems(problems) = &refused else { panic!("{refused}") };
    assert_eq!((problems[0].file.as_path(), problems[0].line), (large.as_path(), 1));
}

#[tokio::test]
async fn a_change_is_seen_and_a_mistake_leaves_the_last_good_picture() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::write(folder.path().join("m.yaml"), MODEL).unwrap();
    let file = folder.path().join("sub/a.yml");
    std::fs::write(&file, agent("one")).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not: [yaml").unwrap();
    let catalog = FolderCatalog::open(folder.path(), "default").unwrap();
    assert_eq!(instructions(&catalog), "one");

    let stop = CancellationToken::new();
    let watching = tokio::spawn(catalog.watch(stop.clone()).unwrap());
    let (mut changes, mut problems) = (catalog.changes(), catalog.problems());
    put(&file, &agent("two"));
    let patience = Duration::from_secs(120);
    tokio::time::timeout(patience, changes.changed()).await.unwrap().unwrap();
    assert_eq!(instructions(&catalog), "two");

    put(&file, "kind: [broken");
    let wrong = problems.wait_for(|problems| !problems.is_empty());
    let wrong = tokio::time::timeout(patience, wrong).await.unwrap().unwrap().clone();
    assert_eq!(wrong[0].file, file);
    assert_eq!(instructions(&catalog), "two");

    std::fs::remove_file(&file).unwrap();
    let mended = problems.wait_for(Vec::is_empty);
    tokio::time::timeout(patience, mended).await.unwrap().unwrap();
    assert!(catalog.agent(&ComponentRef::agent("default", "a")).is_none());

    std::fs::create_dir(folder.path().join("new")).unwrap();
    let file = folder.path().join("new/a.yaml");
    for text in ["three", "four"] {
        put(&file, &agent(text));
        let component = ComponentRef::agent("default", "a");
        let seen = async {
            while catalog.agent(&component).is_none() || instructions(&catalog) != text {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(patience, seen).await.unwrap();
    }
    stop.cancel();
    watching.await.unwrap();
}

#[test]
fn a_folder_with_mistakes_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.yaml"), "apiVersion: cadre.dev/v1alpha1\nkind: Nothing\n").unwrap();
    let refused = FolderCatalog::open(folder.path(), "default").err().unwrap();
    assert!(refused.to_string().contains("m.yaml:1: kind \"Nothing\""), "{refused}");
    assert!(FolderCatalog::open(&folder.path().join("absent"), "default").is_err());
}

#[test]
fn only_manifests_matter() {
    let root = Path::new("/p");
    for (path, expected) in [
        ("/p/a.yaml", true),
        ("/p/sub", true),
        ("/p/.cadre/cadre.db-wal", false),
        ("/p/.git/x.yaml", false),
        ("/p/a.txt", false),
    ] {
        assert_eq!(matters(root, Path::new(path)), expected, "{path}");
    }
}
