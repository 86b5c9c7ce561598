//! What works on tasks. [`Agent`] is the one interface; [`agents`] knows who there is; [`execute()`] takes a task from
//! request to result. All agents work through a [`Worker`], inside a sandbox.

mod agents;
mod bill;
mod claude;
mod conversation;
mod execute;
mod id;
mod interface;
mod mock;
mod model;
mod note;
mod program;
pub mod receipt;
mod task;
mod tasks;
mod trail;
pub mod words;
mod worker;

pub use agents::{Chosen, Offer, Ready, UnknownAgent, choose, offers};
pub use bill::{Bill, Budget, Tokens, dollars};
pub use conversation::{Conversation, last_task};
pub use execute::{execute, policy};
pub use id::{InvalidTaskId, TaskId};
pub use interface::{Agent, Assignment, Finished, Mailbox};
pub use mock::MOCK;
pub use note::{Change, Note};
pub use program::{InstallError, Installed, KINDS, Kind, LATEST, Store, end_after, install};
pub use task::{Content, TaskError, TaskFile, TaskPlace, TaskRequest, TaskResult, TaskStatus};
pub use tasks::{Outcome, Running, Standing, Tasks};
pub use trail::{Step, Trail};
pub use worker::{Command, FileError, Progress, Ran, WorkError, Worker};
