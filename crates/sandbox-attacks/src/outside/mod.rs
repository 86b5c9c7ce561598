//! Attacks that are driven from outside.

pub(crate) mod files;
pub(crate) mod jobs;
pub(crate) mod links;
pub(crate) mod neighbours;

use futures::future::BoxFuture;

use crate::{
    report::Finding,
    workbench::{Bench, Cell},
};

/// Makes a sandbox, and does something with it.
pub(crate) fn with_cell<F>(bench: Bench, work: fn(Bench, Cell) -> F) -> BoxFuture<'static, Finding>
where
    F: Future<Output = Finding> + Send + 'static,
{
    Box::pin(async move {
        match bench.cell().await {
            Ok(cell) => work(bench, cell).await,
            Err(error) => Finding::failed(error.to_string()),
        }
    })
}

/// Leaves early with what was found.
macro_rules! or_return {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(finding) => return finding,
        }
    };
}
pub(crate) use or_return;
