//! What a sandbox may do, beyond what the kernel says: refusals that teach, and asking a person.
//!
//! A command is judged before it runs ([`judge`]); only an [`Admitted`] one can be started. What the policy refuses is
//! asked of whoever can answer ([`person`]), at a bounded pace ([`grants`]), in words that hostile text cannot bend
//! ([`question`]). What came of it is recorded: refusals as `denied`, questions as `asked`, `granted` and `declined`.

mod grants;
mod hints;
mod hosts;
mod inquiry;
mod judge;
mod limits;
mod person;
mod question;
mod request;

use std::{sync::Arc, time::Duration};

pub use grants::{ActiveGrant, QUESTIONS, QUESTIONS_IN_ALL};
pub use hints::{Hint, read as hints};
pub use inquiry::Inquiry;
pub use judge::{Judged, Liftable, Objection, judge, refusals};
pub use limits::{ended as ended_by_limit, not_raised};
pub use person::{Nobody, Person, Reply, permit};
pub use question::{MOST_MINUTES, Question, Span, Wish, shown};
pub use request::{AccessKind, AccessRequest, is_operators, longest, lowered_by, policy_giving};

use sandbox_core::{
    Control, Denial, Policy, Reason,
    exec::{Ending, Exec},
};

use sandbox_egress::Reader;

use grants::Grants;
pub(super) use grants::Pace;
use request::Plan;

use super::{Allowed, Session, What};
use crate::config::{Ask, Settings};

/// For how long something may be reached that was asked for once.
const A_WHILE: Span = Span::Minutes(10);

/// What one sandbox was granted, and how often it has asked.
pub(super) struct Access {
    grants: Grants,
    pace: Pace,
    in_all: Arc<Pace>,
    /// Who reads what is said about refusals.
    reader: Reader,
}

impl Access {
    /// For a sandbox of a server whose sandboxes share this pace.
    pub fn new(in_all: Arc<Pace>, reader: Reader) -> Self {
        Self { grants: Grants::default(), pace: Pace::of(QUESTIONS), in_all, reader }
    }

    /// The pace of all sandboxes of a server together.
    pub fn pace_in_all() -> Arc<Pace> {
        Arc::new(Pace::of(QUESTIONS_IN_ALL))
    }

    /// What is granted now.
    pub fn active(&self) -> Vec<ActiveGrant> {
        self.grants.active()
    }

    /// What may be reached beyond the policy.
    pub fn network_rules(&self) -> Vec<sandbox_egress::Rule> {
        self.grants.network_rules()
    }

    /// The longest time that was granted to commands.
    pub fn run_time(&self) -> Option<Duration> {
        self.grants.run_time()
    }
}

/// A command that may be started: its lists were looked at, and whoever had to be asked has said yes.
#[derive(Debug)]
pub struct Admitted {
    pub(super) exec: Exec,
    /// How long it may run.
    pub allowed: Allowed,
    /// What the caller should know.
    pub notes: Vec<String>,
}

/// Why something was not to be had.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is refused.
    #[error("{}", in_words(.0))]
    Denied(Vec<Denial>),
    /// It cannot be told what was asked for.
    #[error("{0}")]
    Unclear(String),
    /// A question was put, and its answer comes with another call.
    #[error("a person was asked; the answer comes with the next call")]
    Later,
}

/// What a person, or the policy, gave.
#[derive(Debug)]
pub struct Given {
    /// For how long; nothing where nobody had to be asked.
    pub span: Option<Span>,
    /// In words.
    pub message: String,
}

enum Asked {
    Granted(Span),
    Refused(Box<Denial>),
    Later,
}

impl Session {
    /// Looks at a command before it runs. What the policy denies is asked of the person, where the settings say so.
    pub async fn admit(&self, exec: Exec, person: &dyn Person) -> Result<Admitted, Refused> {
        let judged = judge(&exec, self.policy());
        let command = exec.program.to_string();
        let is_open = |objection: &&Objection| !self.access.grants.lift(&objection.rule, &command);
        let open: Vec<&Objection> = judged.objections.iter().filter(is_open).collect();
        if !open.is_empty() {
            self.ask_for(&exec, &open, person).await?;
        }
        let rules: Vec<String> = judged.objections.iter().map(|objection| objection.rule.clone()).collect();
        self.access.grants.use_up(&rules, &command);
        let allowed = self.allowed(exec.timeout);
        if exec.timeout.is_some() && allowed.timeout > self.policy().limits.run {
            self.access.grants.use_run_time(allowed.timeout);
        }
        let notes = judged.unknown.map(|what| format!("{what}. It was run: the kernel has the last word")).into_iter();
        Ok(Admitted { exec, allowed, notes: notes.collect() })
    }

    /// Asks for something in advance.
    pub async fn request(&self, request: AccessRequest, person: &dyn Person) -> Result<Given, Refused> {
        let reader = self.access.reader;
        let wish = match request::plan(&request, self.policy(), self.settings(), &self.access.grants, reader) {
            Plan::Already(message) => return Ok(Given { span: None, message }),
            Plan::Unclear(what) => return Err(Refused::Unclear(what)),
            Plan::Refuse(denial) => return Err(self.refuse(vec![*denial])),
            Plan::Ask(wish) => wish,
        };
        let AccessRequest { target, reason, span, .. } = request;
        let about_network = matches!(wish, Wish::Network(_));
        if about_network && self.way_out().is_none() {
            let message = "another server looks after this sandbox, or its network is gone".to_owned();
            let denial = self.question(wish, target, reason, span).refusal(
                Reason::NeedsNewSandbox,
                message,
                "Ask through the server that made it, or create a new sandbox",
            );
            return Err(self.refuse(vec![denial]));
        }
        // Which command a connection belongs to cannot be told, so nothing is given for one command.
        let bounded = |span: Span| if about_network && span == Span::Once { A_WHILE } else { span };
        let question = self.question(wish, target, reason, bounded(span));
        match self.ask(&question, person).await {
            Asked::Granted(span) => {
                let span = bounded(span);
                self.access.grants.add(&question, span, &person.name());
                if about_network {
                    self.follow_grants(span);
                }
                Ok(Given { span: Some(span), message: format!("{} said yes", person.name()) })
            }
            Asked::Refused(denial) => Err(self.refuse(vec![*denial])),
            Asked::Later => Err(Refused::Later),
        }
    }

    /// Notes refusals and hands them on.
    pub fn refuse(&self, denials: Vec<Denial>) -> Refused {
        for denial in &denials {
            self.record(What::Denied { denial: Box::new(denial.clone()), job: None });
        }
        Refused::Denied(denials)
    }

    /// The refusal by which a limit ended a job.
    pub fn ended_by(&self, control: Control, elapsed: Duration, ending: &Ending) -> Denial {
        let (policy, settings) = (self.policy(), self.settings());
        if control == Control::Time {
            let asking_helps = settings.ask != Ask::Never;
            let longest = if asking_helps { longest(settings) } else { policy.limits.run };
            return limits::out_of_time(policy, elapsed, longest, self.access.reader);
        }
        let more = roomier(control, policy, settings);
        limits::ended(control, policy, elapsed, ending, more.as_deref(), self.access.reader)
    }

    /// Who reads what is said about refusals in it.
    pub fn reader(&self) -> Reader {
        self.access.reader
    }

    async fn ask_for(&self, exec: &Exec, open: &[&Objection], person: &dyn Person) -> Result<(), Refused> {
        let can_be_lifted = |objection: &&&Objection| {
            objection.liftable == Liftable::Yes && !request::is_operators(&objection.rule, self.settings())
        };
        let liftable = open.iter().filter(can_be_lifted).count() == open.len();
        if self.settings().ask != Ask::Denied || !liftable || !person.is_there() {
            return Err(self.refuse(refusals(open, |rules| Some(way(rules, self.settings(), person)))));
        }
        let rules = open.iter().map(|objection| objection.rule.clone()).collect();
        let question = self.question(Wish::Command { rules }, exec.program.to_string(), None, Span::Once);
        match self.ask(&question, person).await {
            Asked::Granted(Span::Once) => Ok(()),
            Asked::Granted(span) => {
                self.access.grants.add(&question, span, &person.name());
                Ok(())
            }
            Asked::Refused(denial) => {
                let mut denials = refusals(open, |_| None);
                denials.push(*denial);
                Err(self.refuse(denials))
            }
            Asked::Later => Err(Refused::Later),
        }
    }

    /// Puts a question, unless there were too many, and notes what came of it.
    async fn ask(&self, question: &Question, person: &dyn Person) -> Asked {
        let reply = match person.answered(question) {
            Some(reply) => reply,
            None => {
                if let Some(denial) = self.no_question(question, person) {
                    return Asked::Refused(Box::new(denial));
                }
                self.record(What::Asked {
                    kind: question.wish.kind().to_owned(),
                    target: question.shown_target(),
                    reason: question.shown_reason(),
                    span: question.span,
                });
                person.answer(question).await
            }
        };
        let (reason, message, instead) = match reply {
            Reply::Later => return Asked::Later,
            Reply::Granted(span) => {
                let (kind, target) = (question.wish.kind().to_owned(), question.shown_target());
                self.record(What::Granted { kind, target, span, by: person.name() });
                return Asked::Granted(span);
            }
            Reply::Declined => (Reason::Declined, format!("{} said no", person.name()), person.after_a_no()),
            Reply::NoAnswer => (
                Reason::NoAnswer,
                format!("{} did not answer in time", person.name()),
                "Go on without it, or ask later",
            ),
        };
        let (kind, target) = (question.wish.kind().to_owned(), question.shown_target());
        self.record(What::Declined { kind, target, reason, by: person.name() });
        Asked::Refused(Box::new(question.refusal(reason, message, instead)))
    }

    /// Why no question may be put now.
    fn no_question(&self, question: &Question, person: &dyn Person) -> Option<Denial> {
        if self.settings().ask == Ask::Never {
            let message = "the operator's settings say that nobody is asked (ask = \"never\")".to_owned();
            return Some(question.refusal(Reason::NobodyToAsk, message, "Do it another way"));
        }
        if !person.is_there() {
            let (why, instead) = match self.access.reader {
                Reader::Person => ("there is no terminal to ask at", "Do it another way, or start it at a terminal"),
                Reader::Model | Reader::Unheard => (
                    "this client does not show questions (MCP elicitation)",
                    "Do it another way, or tell the user to ask from a client or a terminal that can answer",
                ),
            };
            return Some(question.refusal(Reason::NobodyToAsk, format!("nobody can be asked: {why}"), instead));
        }
        if !self.access.pace.take() {
            let message = format!("this sandbox has asked {QUESTIONS} questions in 10 minutes, and may not ask more");
            return Some(question.refusal(Reason::TooManyQuestions, message, "Go on without it"));
        }
        if !self.access.in_all.take() {
            let message = format!("{QUESTIONS_IN_ALL} questions were asked in 10 minutes, and there may be no more");
            return Some(question.refusal(Reason::TooManyQuestions, message, "Go on without it"));
        }
        None
    }

    fn question(&self, wish: Wish, target: String, reason: Option<String>, span: Span) -> Question {
        Question { session_id: self.id().clone(), policy: self.policy().name.clone(), wish, target, reason, span }
    }

    fn policy(&self) -> &Policy {
        &self.facts().spec.policy
    }
}

/// How a rule that is only advice can be lifted here, for whoever reads the refusal.
pub fn way(rules: &[&str], settings: &Settings, person: &dyn Person) -> String {
    if rules.iter().any(|rule| request::is_operators(rule, settings)) {
        return "The operator's ceiling denies it to everybody".to_owned();
    }
    match settings.ask {
        Ask::Never => person.without_asking(rules),
        _ if !person.is_there() => person.without_asking(rules),
        _ => person.how_to_ask(rules),
    }
}

/// A policy that may be used here and gives more of this.
pub fn roomier(control: Control, policy: &Policy, settings: &Settings) -> Option<String> {
    let own = &policy.limits;
    policy_giving(settings, policy, |other| match control {
        Control::Memory => other.limits.memory > own.memory,
        Control::Disk => other.limits.disk > own.disk,
        Control::Tmp => other.limits.tmp > own.tmp,
        Control::Pids => other.limits.pids > own.pids,
        Control::Cpu => other.limits.cpu_millis > own.cpu_millis,
        Control::Time => other.limits.run > own.run,
        _ => false,
    })
}

/// Refusals in sentences, for those who read no structure.
pub fn in_words(denials: &[Denial]) -> String {
    let told = denials.iter().map(|denial| format!("{}. {}", sentence(&denial.message), sentence(&denial.how_to_ask)));
    told.collect::<Vec<_>>().join(". ")
}

/// Without its full stop, and with a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.trim_end_matches('.').chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}
