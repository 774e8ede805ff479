//! A fixed list of replicas.

use futures_util::{FutureExt, future::BoxFuture};

use super::Discovery;
use crate::fleet::BaseUrl;

/// Yields its list once, without repetitions, and then waits for ever.
#[derive(Debug)]
pub struct Static(Option<Vec<BaseUrl>>);

impl Static {
    /// A list in the order of the configuration; the first of equal ones stays.
    #[must_use]
    pub fn new(replicas: Vec<BaseUrl>) -> Self {
        let mut unique: Vec<BaseUrl> = Vec::with_capacity(replicas.len());
        for replica in replicas {
            if !unique.contains(&replica) {
                unique.push(replica);
            }
        }
        Self(Some(unique))
    }
}

impl Discovery for Static {
    fn next(&mut self) -> BoxFuture<'_, Vec<BaseUrl>> {
        match self.0.take() {
            Some(replicas) => std::future::ready(replicas).boxed(),
            None => std::future::pending().boxed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_comes_once_and_without_repetitions() {
        let urls = ["http://a:1", "http://b:1/v1", "http://a:1/v1"].map(|url| url.parse().unwrap());
        let mut fixed = Static::new(urls.to_vec());

        let list = fixed.next().now_or_never().unwrap();

        assert_eq!(list, urls[..2]);
        assert!(fixed.next().now_or_never().is_none());
    }
}
