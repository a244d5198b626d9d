//! What needs a disk that fails or a clock that goes back.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};

use ::redb::{Database, StorageBackend};
use standfast_domain::commit::CommitId;

use super::*;

/// A disk in memory that can be full; what is on it outlives the database.
#[derive(Clone, Debug, Default)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap()
    }

    fn room(&self) -> Result<(), Error> {
        let full = self.full.load(Ordering::SeqCst);
        if full { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn fill(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let offset = offset as usize;
        out.copy_from_slice(&self.bytes()[offset..offset + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.room()?;
        self.bytes().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.room()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.room()?;
        let offset = offset as usize;
        self.bytes()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn open(disk: &Disk, system: impl Fn() -> Time + Send + Sync + 'static) -> RedbStore {
    let disk = disk.clone();
    let path = Path::new("memory");
    let create = move || {
        let disk = disk.clone();
        file::prepared(path, || Database::builder().create_with_backend(disk))
    };
    let file = File::with_opener(None, Box::new(create)).unwrap();
    RedbStore::build(path.to_owned(), file, Box::new(system)).unwrap()
}

fn put(id: u64, bytes: usize) -> Commit {
    Commit {
        id: CommitId(id),
        scope: Scope::Installation,
        guards: Vec::new(),
        writes: vec![(format!("r{id}"), Some(vec![7; bytes]))],
        first_event: 0,
        events: Vec::new(),
        indexes: Vec::new(),
        returns: Vec::new(),
    }
}

async fn present(store: &RedbStore, id: u64) -> bool {
    let load = Load { scope: Scope::Installation, fields: vec![format!("r{id}")] };
    store.load(&[load]).await.unwrap().1[0][0].is_some()
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_heals_without_a_restart() {
    let disk = Disk::default();
    let store = open(&disk, || Time(1));
    store.commit(&[put(1, 10)]).await.unwrap();
    disk.fill(true);
    let refused = store.commit(&[put(2, 1 << 20), put(3, 10)]).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
    disk.fill(false);
    assert!(present(&store, 1).await);
    assert!(!present(&store, 2).await && !present(&store, 3).await);
    store.commit(&[put(2, 1 << 20), put(3, 10)]).await.unwrap();
    drop(store);
    let store = open(&disk, || Time(1));
    assert!(present(&store, 2).await && present(&store, 3).await);
}

#[tokio::test]
async fn time_stands_still_where_the_system_clock_went_back() {
    let disk = Disk::default();
    let store = open(&disk, || Time(100_000));
    assert_eq!(store.commit(&[put(1, 1)]).await.unwrap().0, Time(100_000));
    drop(store);
    let store = open(&disk, || Time(40_000));
    assert_eq!(store.now().await.unwrap(), Time(100_000));
    assert_eq!(store.commit(&[put(2, 1)]).await.unwrap().0, Time(100_000));
    let health = store.health().await.unwrap();
    assert!(health.warnings[0].contains("60 s behind"), "{health:?}");
}

#[tokio::test]
async fn commits_of_waiting_calls_share_transactions() {
    let disk = Disk::default();
    let store = Arc::new(open(&disk, || Time(1)));
    let calls = (0..200).map(|id| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.commit(&[put(id, 10)]).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.unwrap().unwrap().1[0].applied);
    }
    for id in 0..200 {
        assert!(present(&store, id).await, "{id}");
    }
}

#[test]
fn formats_and_databases_of_others_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(RedbStore::open(directory.path()).unwrap());
    let path = directory.path().join("standfast.redb");
    let set = |format: u64| {
        let database = Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(tables::META).unwrap().insert("format", format).unwrap();
        transaction.commit().unwrap();
    };
    set(tables::FORMAT + 1);
    let refused = RedbStore::open(directory.path()).err();
    assert!(matches!(refused, Some(OpenError::Newer { found: 2, known: 1, .. })), "{refused:?}");
    set(tables::FORMAT);
    RedbStore::open(directory.path()).unwrap();

    let directory = tempfile::tempdir().unwrap();
    let theirs = Database::create(directory.path().join("standfast.redb")).unwrap();
    let transaction = theirs.begin_write().unwrap();
    transaction.open_table(::redb::TableDefinition::<u64, u64>::new("theirs")).unwrap();
    transaction.commit().unwrap();
    assert!(matches!(RedbStore::open(directory.path()), Err(OpenError::Held(_))));
    drop(theirs);
    assert!(matches!(RedbStore::open(directory.path()), Err(OpenError::Corrupt { .. })));
}
