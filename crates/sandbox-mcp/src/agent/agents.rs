//! Which agents there are, which of them can work here, and who is chosen.

use std::sync::Arc;

use super::{
    Agent,
    claude::Claude,
    mock::{MOCK, Mock},
    program::{self, Program},
};
use crate::config::{Settings, nearest};

/// An agent by name, and whether it can work here.
pub struct Offer {
    /// What callers call it.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// The agent, or how to get it.
    pub agent: Result<Ready, String>,
}

/// An agent that can work.
#[derive(Clone)]
pub struct Ready {
    /// The agent.
    pub agent: Arc<dyn Agent>,
    /// Why it can.
    pub why: String,
}

/// Who works on a task.
#[derive(Clone)]
pub struct Chosen {
    /// The agent.
    pub agent: Arc<dyn Agent>,
    /// Why it is this one.
    pub why: String,
}

/// Takes what is configured.
const AUTO: &str = "auto";

/// Nobody here has this name, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownAgent {
    /// Nobody has this name.
    #[error("there is no agent `{name}`{hint}. Available: {available}. Leave `agent` out to use what is configured")]
    Name {
        /// What was asked for.
        name: String,
        /// What it is most like.
        hint: String,
        /// Who can work here, and how to get the others.
        available: String,
    },
    /// It cannot work here yet.
    #[error("the agent {name} cannot work here yet: {how}. Available: {available}")]
    Missing {
        /// Who.
        name: &'static str,
        /// How to get it.
        how: String,
        /// Who can work here, and how to get the others.
        available: String,
    },
}

/// All agents that this program knows, in the order in which `auto` takes them.
pub fn offers(settings: &Settings) -> Vec<Offer> {
    vec![
        Offer {
            name: "claude",
            about: "the built-in loop; it asks a model of your choice",
            agent: Claude::offer(settings),
        },
        Program::offer(settings, &program::CLAUDE_CODE),
        Program::offer(settings, &program::OPENCODE),
        Offer {
            name: MOCK,
            about: "no model: it shows that everything around an agent works, or follows a script",
            agent: Ok(Ready { agent: Arc::new(Mock), why: "it needs nothing".to_owned() }),
        },
    ]
}

/// The agent that was named, or the one that is configured.
pub fn choose(settings: &Settings, named: Option<&str>) -> Result<Chosen, UnknownAgent> {
    let name = named.unwrap_or(&settings.agent);
    let offers = offers(settings);
    if name == AUTO {
        let ready = offers.iter().find_map(|offer| offer.agent.as_ref().ok().map(|ready| (offer.name, ready)));
        return match ready {
            Some((name, ready)) => {
                let others = offers.iter().filter(|offer| offer.name != name);
                let missing = others.filter_map(|offer| Some((offer.name, offer.agent.as_ref().err()?)));
                let instead: Vec<String> = missing.map(|(name, how)| format!("for {name}: {how}")).collect();
                let more = if instead.is_empty() { String::new() } else { format!(" ({})", instead.join("; ")) };
                Ok(Chosen { agent: ready.agent.clone(), why: format!("auto took {name}: {}{more}", ready.why) })
            }
            None => Err(UnknownAgent::Missing { name: AUTO, how: available(&offers), available: String::new() }),
        };
    }
    let Some(offer) = offers.iter().find(|offer| offer.name == name) else {
        let near = nearest(name, offers.iter().map(|offer| offer.name));
        return Err(UnknownAgent::Name {
            name: name.chars().take(60).collect(),
            hint: near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default(),
            available: available(&offers),
        });
    };
    let by = if named.is_some() { "it was asked for" } else { "the setting `agent` names it" };
    match &offer.agent {
        Ok(ready) => Ok(Chosen { agent: ready.agent.clone(), why: by.to_owned() }),
        Err(how) => Err(UnknownAgent::Missing { name: offer.name, how: how.clone(), available: available(&offers) }),
    }
}

/// Who can work here, and how to get the others.
fn available(offers: &[Offer]) -> String {
    let ready = offers.iter().filter(|offer| offer.agent.is_ok()).map(|offer| offer.name.to_owned());
    let missing = offers.iter().filter_map(|offer| {
        let how = offer.agent.as_ref().err()?;
        Some(format!("{} ({how})", offer.name))
    });
    ready.chain(missing).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Typed};

    fn settings(text: &str) -> Settings {
        let mut typed = Typed::default();
        let without_key = format!("model_key = \"env:NO_SUCH_VARIABLE_ANYWHERE\"\n{text}");
        typed.add_file(std::path::Path::new("/x"), &without_key).unwrap();
        typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
        Settings::from_typed(typed).unwrap()
    }

    #[test]
    fn an_unknown_agent_is_answered_with_those_that_exist_and_how_to_get_others() {
        let message = choose(&settings(""), Some("claud")).err().unwrap().to_string();
        assert!(message.contains("`claud`") && message.contains("did you mean `claude`"), "{message}");
        assert!(message.contains("Available: mock, claude (set NO_SUCH_VARIABLE_ANYWHERE"), "{message}");
        let message = choose(&settings(""), Some("claude")).err().unwrap().to_string();
        assert!(message.contains("cannot work here yet") && message.contains("model_url"), "{message}");
    }

    #[test]
    fn auto_takes_what_is_configured_and_says_why() {
        let chosen = choose(&settings(""), None).unwrap();
        assert_eq!(chosen.agent.name(), "mock");
        assert!(chosen.why.contains("auto took mock") && chosen.why.contains("for claude: set"), "{}", chosen.why);
        let local = settings("model_url = \"http://127.0.0.1:1\"");
        let chosen = choose(&local, Some("auto")).unwrap();
        assert_eq!(chosen.agent.name(), "claude");
        assert!(chosen.why.contains("127.0.0.1:1"), "{}", chosen.why);
        assert_eq!(choose(&local, Some("mock")).unwrap().agent.name(), "mock");
        assert_eq!(choose(&settings("agent = \"mock\""), None).unwrap().why, "the setting `agent` names it");
    }
}
