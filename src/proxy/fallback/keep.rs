//! Where the spend of hosted models is kept, so that a restart does not reset a budget.
//!
//! A small JSON file, replaced as a whole: written beside its place, synced, renamed. It is written a second after
//! something was spent at the latest, so a crash forgets a second of spend.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::fleet::Spent;

/// Largest file that is read: thousands of targets.
const MOST: u64 = 1 << 20;

/// What was spent, by model and target.
pub(super) type Book = BTreeMap<String, Spent>;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    /// Amounts are in pico-dollars; hours and days are numbered from 1970.
    version: u32,
    targets: Book,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("server.spend_file {} {what}", path.display())]
pub struct SpendFileError {
    path: PathBuf,
    what: String,
}

/// Reads the file; one that is not there is empty. It must be writable, which is tried by writing it.
pub(super) fn open(path: &Path) -> Result<Book, SpendFileError> {
    let bad = |what: String| SpendFileError { path: path.to_owned(), what };
    let book = match std::fs::metadata(path).map(|found| found.len()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Book::new(),
        Err(error) => return Err(bad(format!("cannot be read: {error}"))),
        Ok(length) if length > MOST => {
            return Err(bad(format!("is {length} bytes and no spend file; name another, or remove it")));
        }
        Ok(_) => {
            let text = std::fs::read(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
            let page: Page = serde_json::from_slice(&text)
                .map_err(|error| bad(format!("is damaged ({error}); remove it to begin at zero")))?;
            page.targets
        }
    };
    write(path, &book).map_err(|error| bad(format!("cannot be written: {error}; name one in a writable folder")))?;
    Ok(book)
}

/// Replaces the file.
pub(super) fn write(path: &Path, book: &Book) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(&Page { version: 1, targets: book.clone() })?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(&text)?;
    file.sync_all()?;
    drop(file);
    std::fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Period, Usd};

    #[test]
    fn what_was_written_is_read_and_damage_is_told_of() {
        let folder = std::env::temp_dir().join(format!("gateway-spend-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("spend.json");
        assert_eq!(open(&path).unwrap(), Book::new());
        let spent = Spent { hour: Period { number: 5, spent: Usd(7) }, day: Period { number: 1, spent: Usd(9) } };
        let book = Book::from([("m/x@h:1".to_owned(), spent)]);

        write(&path, &book).unwrap();

        assert_eq!(open(&path).unwrap(), book);
        assert!(!folder.join("spend.json.new").exists());
        std::fs::write(&path, "{").unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("remove it"), "{error}");
        let error = open(&folder.join("none/spend.json")).unwrap_err().to_string();
        assert!(error.contains("cannot be written"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
