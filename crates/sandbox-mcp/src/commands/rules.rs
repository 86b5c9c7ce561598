//! The rules of a policy about commands, read once, and how a command is matched with them.
//!
//! A rule is the name of a program, or a name with the words that make it harmful: `sudo`, `rm -rf /`, `chmod 777`,
//! `dd of=/dev/`. Names match whatever folder the program is in; words match in any order and spelling.

use std::collections::BTreeSet;

use sandbox_core::policy::Commands;

use super::paths;

/// What a policy says about commands.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    denied: Vec<Rule>,
    allowed: Option<BTreeSet<String>>,
}

/// One thing that is denied.
#[derive(Clone, Debug)]
pub struct Rule {
    /// As the policy says it.
    pub text: String,
    /// The program.
    pub name: String,
    words: Vec<Needed>,
}

/// A word that makes a command harmful.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Needed {
    /// All of these letters as options, in any grouping, or their long names.
    Letters(Vec<char>),
    /// This long option.
    Option(String),
    /// This folder, or all that is in it, or one that it is in.
    Folder(String),
    /// An operand `name=` with a path beneath this folder.
    Beneath { name: String, folder: String },
    /// These permissions, in digits or letters.
    Mode(u32),
    /// Just this word.
    Word(String),
}

/// A rule that says nothing that could be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RuleError {
    #[error("commands.{list} has an empty entry: write a program's name, as `ssh`")]
    Empty { list: &'static str },
    #[error(
        "commands.deny has `{0}`, which no command can match: begin with a program's name without folder and quotes, \
         as `ssh` or `rm -rf /`"
    )]
    NotAName(String),
    #[error("commands.deny has `{0}`: that is too much for one rule, 200 characters and 8 words are enough")]
    TooLong(String),
    #[error("commands.allow has `{0}`: write a program's name, an absolute path, or a folder that ends in `/`")]
    NotAProgram(String),
}

impl Rules {
    /// What these lists mean.
    pub fn parse(commands: &Commands) -> Result<Self, RuleError> {
        let denied = commands.deny.iter().map(|text| Rule::parse(text)).collect::<Result<_, _>>()?;
        for entry in commands.allow.iter().flatten() {
            check_allowed(entry)?;
        }
        Ok(Self { denied, allowed: commands.allow.clone() })
    }

    /// The first rule that denies this command. Options and operands are in `words`, paths relative to `folder`.
    pub fn denies(&self, name: &str, words: &[String], folder: Option<&str>) -> Option<&Rule> {
        self.denied
            .iter()
            .find(|rule| rule.names(name) && rule.words.iter().all(|word| word.is_in(rule, words, folder)))
    }

    /// The first program that is denied whatever its words are, and that this pattern could stand for.
    pub fn denies_pattern(&self, pattern: &str) -> Option<&Rule> {
        let named = |rule: &&Rule| rule.words.is_empty() && paths::matches(pattern, &rule.name);
        self.denied.iter().find(named)
    }

    /// The rule against writing to devices, if there is one.
    pub fn devices(&self) -> Option<&Rule> {
        let device = |word: &Needed| matches!(word, Needed::Beneath { folder, .. } if folder == "/dev");
        self.denied.iter().find(|rule| rule.words.iter().any(device))
    }

    /// Whether this program may be run, as far as the list of allowed ones says. `path` is as it was written.
    pub fn allows(&self, path: &str, folder: Option<&str>) -> bool {
        let Some(allowed) = &self.allowed else { return true };
        if allowed.contains(path) {
            return true;
        }
        let Some((parent, base)) = path.rsplit_once('/') else {
            return allowed.iter().any(|entry| entry.rsplit_once('/').is_some_and(|(_, base)| base == path));
        };
        let absolute = paths::resolve(path, folder);
        let ours = absolute.is_some_and(|absolute| {
            let beneath = |entry: &String| entry.ends_with('/') && absolute.starts_with(entry);
            allowed.contains(&absolute) || allowed.iter().any(beneath)
        });
        const USUAL: [&str; 6] = ["/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin"];
        ours || USUAL.contains(&parent) && allowed.contains(base)
    }
}

fn check_allowed(entry: &str) -> Result<(), RuleError> {
    if entry.trim().is_empty() {
        return Err(RuleError::Empty { list: "allow" });
    }
    let relative = entry.contains('/') && !entry.starts_with('/');
    if relative || entry.contains(|character: char| character.is_whitespace() || character.is_control()) {
        return Err(RuleError::NotAProgram(entry.chars().take(60).collect()));
    }
    Ok(())
}

impl Rule {
    fn parse(text: &str) -> Result<Self, RuleError> {
        let shown = || text.chars().take(60).collect::<String>();
        let mut words = text.split_whitespace();
        let name = words.next().ok_or(RuleError::Empty { list: "deny" })?.to_owned();
        let plain = |character: char| character.is_alphanumeric() || "._+-".contains(character);
        if !name.chars().all(plain) || name.starts_with('-') || name.chars().all(|dot| dot == '.') {
            return Err(RuleError::NotAName(shown()));
        }
        let words: Vec<_> = words.map(|word| Needed::parse(&name, word)).collect();
        if text.len() > 200 || words.len() > 8 {
            return Err(RuleError::TooLong(shown()));
        }
        if text.contains(['\'', '"', '`', '$', '|', '&', ';', '\\']) || text.contains(char::is_control) {
            return Err(RuleError::NotAName(shown()));
        }
        Ok(Self { text: text.to_owned(), name, words })
    }

    /// Whether a program of this name is meant. `mkfs` also means `mkfs.ext4`, but not a script `mkfs.sh`.
    fn names(&self, name: &str) -> bool {
        const SCRIPTS: [&str; 16] =
            ["sh", "bash", "py", "js", "mjs", "cjs", "ts", "rb", "pl", "php", "lua", "go", "rs", "c", "txt", "md"];
        let Some(rest) = name.strip_prefix(self.name.as_str()) else { return false };
        rest.is_empty() || rest.strip_prefix('.').is_some_and(|kind| !kind.is_empty() && !SCRIPTS.contains(&kind))
    }
}

impl Needed {
    fn parse(name: &str, word: &str) -> Self {
        if let Some(option) = word.strip_prefix("--") {
            return Self::Option(option.to_owned());
        }
        if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            return Self::Letters(letters.chars().collect());
        }
        if let Some((key, value)) = word.split_once('=')
            && value.starts_with('/')
        {
            let folder = value.trim_end_matches('/');
            return Self::Beneath { name: key.to_owned(), folder: folder.to_owned() };
        }
        if let Some(mode) = octal(word).filter(|_| name == "chmod") {
            return Self::Mode(mode & 0o777);
        }
        if word.starts_with('/') || word == "~" {
            return Self::Folder(word.replace('~', paths::HOME));
        }
        Self::Word(word.to_owned())
    }

    fn is_in(&self, rule: &Rule, words: &[String], folder: Option<&str>) -> bool {
        let operands = || words.iter().filter(|word| !word.starts_with('-'));
        match self {
            Self::Letters(letters) => letters.iter().all(|letter| {
                // Without a terminal nobody is asked, so it makes no difference.
                let needless = rule.name == "rm" && *letter == 'f';
                needless || words.iter().any(|word| has_letter(word, *letter))
            }),
            Self::Option(option) => words.iter().any(|word| {
                word.strip_prefix("--").is_some_and(|said| said.split('=').next() == Some(option.as_str()))
            }),
            Self::Folder(target) => operands().any(|word| paths::covers(word, target, folder)),
            Self::Beneath { name, folder: beneath } => words.iter().any(|word| {
                let value = word.split_once('=').filter(|(key, _)| key == name);
                value.is_some_and(|(_, value)| match beneath.as_str() {
                    "/dev" => paths::is_device(value, folder),
                    beneath => paths::is_beneath(value, beneath, folder),
                })
            }),
            Self::Mode(mode) => operands().any(|word| permissions(word) == Some(*mode)),
            Self::Word(needed) => words.contains(needed),
        }
    }
}

/// Whether this word has an option, by its letter or by the long name that it has with the usual programs.
fn has_letter(word: &str, letter: char) -> bool {
    let long = match letter {
        'r' | 'R' => "recursive",
        'f' => "force",
        _ => "",
    };
    match word.strip_prefix("--") {
        // Long names may be shortened.
        Some(said) => said.len() > 1 && long.starts_with(said),
        None => word
            .strip_prefix('-')
            .is_some_and(|letters| letters.contains(letter) || letter == 'r' && letters.contains('R')),
    }
}

fn octal(word: &str) -> Option<u32> {
    let digits = (3..=5).contains(&word.len()) && word.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    digits.then(|| u32::from_str_radix(word, 8).ok()).flatten()
}

/// The permissions that `777`, `a+rwx` or `u=rwx,go=rwx` give to all three classes.
fn permissions(word: &str) -> Option<u32> {
    if let Some(mode) = octal(word) {
        return Some(mode & 0o777);
    }
    let mut mode = 0;
    for clause in word.split(',') {
        let (who, what) = clause.split_once(['+', '='])?;
        let bits = what.chars().try_fold(0, |bits, letter| match letter {
            'r' => Some(bits | 4),
            'w' => Some(bits | 2),
            'x' | 'X' => Some(bits | 1),
            's' | 't' => Some(bits),
            _ => None,
        })?;
        for class in who.chars() {
            mode |= match class {
                'u' => bits << 6,
                'g' => bits << 3,
                'o' => bits,
                'a' => bits << 6 | bits << 3 | bits,
                _ => return None,
            };
        }
    }
    Some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(deny: &[&str], allow: Option<&[&str]>) -> Result<Rules, RuleError> {
        let owned = |list: &[&str]| list.iter().map(|entry| (*entry).to_owned()).collect();
        Rules::parse(&Commands { allow: allow.map(owned), deny: owned(deny), ..Commands::default() })
    }

    #[test]
    fn nonsense_is_refused_when_it_is_read() {
        for rule in ["", "  ", "/usr/bin/sudo", "su do; ls", "'sudo'", "-rf /", "..", "a b c d e f g h i j"] {
            assert!(rules(&[rule], None).is_err(), "{rule}");
        }
        for entry in ["", "bin/python", "two words"] {
            assert!(rules(&[], Some(&[entry])).is_err(), "{entry}");
        }
        assert!(rules(&["sudo", "rm -rf /", "dd of=/dev/", "git push --force"], Some(&["git", "/opt/tools/"])).is_ok());
    }

    #[test]
    fn words_match_in_any_order_and_spelling() {
        let rules = rules(&["rm -rf /", "chmod 777", "dd of=/dev/", "git push --force"], None).unwrap();
        let denied = |command: &str| {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            rules.denies(&words[0], &words[1..], Some("/workspace")).is_some()
        };
        for command in [
            "rm -rf /",
            "rm -fr /",
            "rm -r -f /",
            "rm / -rf",
            "rm --recursive --force /",
            "rm --rec /*",
            "rm -R //",
            "rm -rf --no-preserve-root /.",
            "rm -rf x /",
            "rm -rf ../..",
            "rm -rf /bin/..",
            "chmod 0777 x",
            "chmod -R 777 x",
            "chmod a+rwx x",
            "chmod ugo+rwx x",
            "chmod u=rwx,go=rwx x",
            "chmod 1777 x",
            "dd of=/dev/sda",
            "dd if=x of=//dev/sda",
            "git push origin --force",
        ] {
            assert!(denied(command), "{command}");
        }
        for command in [
            "rm -rf ./build /tmp/x",
            "rm -f /",
            "rm -rf /tmp/*",
            "rm -rf .",
            "chmod 755 x",
            "chmod u+rwx x",
            "chmod +x x",
            "dd if=/dev/zero of=file",
            "dd if=x of=/dev/null",
            "git push",
            "rm file",
        ] {
            assert!(!denied(command), "{command}");
        }
    }

    #[test]
    fn allowed_are_names_paths_and_folders() {
        let rules = rules(&[], Some(&["git", "/opt/tool", "/opt/more/", "/workspace/"])).unwrap();
        for path in ["git", "/usr/bin/git", "/opt/tool", "tool", "/opt/more/x", "./script", "bin/x"] {
            assert!(rules.allows(path, Some("/workspace")), "{path}");
        }
        for path in ["make", "/tmp/git", "/opt/more/../evil", "/opt/moreover"] {
            assert!(!rules.allows(path, Some("/workspace")), "{path}");
        }
    }
}
