//! What one connection means for secrets: which may be put in, which may not be seen on it, and what it may cost.

use std::{fmt, sync::Arc};

use hyper::{
    Request, Response, StatusCode,
    body::{Body, Incoming},
    header,
};

use super::{
    Alarm, Answer, Kept, Outgoing, PlainHttp, Question, Scheme, Secrets, Upstream, WHOLE_BODIES,
    body::Watch,
    follow::{Followed, NoLeave},
    hide::{self, Hidden},
    joined,
    put::{Put, Values},
    spent::Meter,
};
use crate::{Reason, Refusal, Target};

/// The longest question that somebody who follows a service is shown, and with it the longest that is asked.
const LARGEST_QUESTION: u64 = 32 << 20;
/// So much of one takes one of the places for bodies that are held whole.
const QUESTION_PLACE: u64 = 2 << 20;

/// One connection to a target over which requests go.
pub(crate) struct Passage {
    pub(crate) target: Target,
    pub(crate) alarm: Alarm,
    over: Over,
    secrets: Option<Here>,
}

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Plain,
    Tls,
}

/// What the secrets of a sandbox are on this connection.
struct Here {
    kept: Arc<Kept>,
    /// For each secret, why its placeholder may not be here, if it may not.
    minds: Arc<[Option<Reason>]>,
    values: Values,
    /// One that every request needs and that may not be sent like this.
    plain: Option<usize>,
    /// The service that pays.
    service: Option<usize>,
    /// Nothing if no secret is for this target.
    hidden: Option<Hidden>,
}

/// Why a request did not go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) reason: Reason,
    /// The secret that it is about.
    pub(crate) secret: Option<String>,
    /// What else there is to say.
    pub(crate) words: Option<String>,
}

impl Passage {
    /// To a target, as a program wants it, or to the service of this number.
    pub(crate) fn new(secrets: &Secrets, target: &Target, over: Over, alarm: &Alarm, service: Option<usize>) -> Self {
        let here = secrets.0.as_ref().map(|kept| Here::new(kept, target, over, service));
        Self { target: target.clone(), alarm: Arc::clone(alarm), over, secrets: here }
    }

    /// How the refusal to go on with something else than requests is called here.
    pub(crate) fn upgrade(&self) -> Reason {
        match self.over {
            Over::Plain => Reason::HttpUpgrade,
            Over::Tls => Reason::SecretUpgrade,
        }
    }

    /// Looks for placeholders that may not be in a request's head, whoever it is for.
    pub(crate) fn look(&self, request: &Request<Incoming>) -> Result<(), Stopped> {
        let Some(mut watch) = self.watch() else { return Ok(()) };
        watch.look_once(request.method().as_str().as_bytes())?;
        watch.look_once(request.uri().to_string().as_bytes())?;
        for (name, value) in request.headers() {
            watch.look_once(name.as_str().as_bytes())?;
            watch.look_once(value.as_bytes())?;
            if name == header::HOST {
                watch.look_once(&joined(value.as_bytes()))?;
            }
        }
        Ok(())
    }

    /// A request as it goes out, and what must not come back in its answer.
    pub(crate) async fn put(&self, request: Request<Incoming>) -> Result<(Request<Outgoing>, Returning), Stopped> {
        let Some(here) = &self.secrets else { return Ok((request.map(Outgoing::untouched), Returning::default())) };
        here.may_spend()?;
        if let Some(secret) = here.plain {
            return Err(here.kept.stop(secret, Reason::SecretInPlain, &self.target));
        }
        let Some(hidden) = &here.hidden else {
            return Ok((request.map(|body| Outgoing::new(body, self.watch(), None)), Returning::default()));
        };
        let sent = request.body().size_hint().exact().unwrap_or(0);
        let (request, credentials) = Put::new(&here.kept, &here.values).into_request(request, self.watch()).await?;
        let (request, followed) = here.ask(request).await?;
        let meter = here.service.map(|service| (Arc::clone(&here.kept), service, sent, followed));
        Ok((request, Returning { hidden: Some(hidden.and(credentials)), meter }))
    }

    fn watch(&self) -> Option<Watch> {
        let here = self.secrets.as_ref()?;
        Watch::new(&here.kept, &here.minds, &self.target, &self.alarm)
    }
}

impl Here {
    /// `asked` is the service by whose address somebody came here.
    fn new(kept: &Arc<Kept>, target: &Target, over: Over, asked: Option<usize>) -> Self {
        let by_service = asked.and_then(|service| kept.services.get(service)).map(|serving| serving.secret);
        let bound = |number: usize| kept.held[number].is_for(target) || by_service == Some(number);
        let mind = |number: usize| match kept.held[number].secret.plain_http {
            _ if !bound(number) => Some(Reason::SecretLeaving),
            PlainHttp::Refused if over == Over::Plain => Some(Reason::SecretInPlain),
            PlainHttp::Refused | PlainHttp::Allowed => None,
        };
        let minds: Arc<[Option<Reason>]> = (0..kept.held.len()).map(mind).collect();
        // A service has its own secret, and those of others stay out of its headers.
        let is_header =
            |number: &usize| kept.held[*number].header.is_some() && by_service.is_none_or(|own| own == *number);
        let numbers = || 0..kept.held.len();
        let put = numbers().filter(|&number| minds[number].is_none());
        let values = Values::new(put.clone().map(|number| &kept.held[number]), put.filter(is_header).collect());
        let plain = numbers().filter(is_header).find(|&number| minds[number] == Some(Reason::SecretInPlain));
        // Also what may not be sent from here may have been sent before, and comes back.
        let hidden = numbers().any(bound).then(|| {
            Hidden::new(
                numbers().filter(|&number| bound(number)).flat_map(|number| kept.held[number].hidden()).collect(),
            )
        });
        // Whoever goes to a service's real address pays like all others.
        let scheme = if over == Over::Tls { Scheme::Https } else { Scheme::Http };
        let there = |upstream: &Upstream| upstream.target == *target && upstream.scheme == scheme;
        let service = asked.or_else(|| kept.services.iter().position(|serving| there(&serving.service.upstream)));
        Self { kept: Arc::clone(kept), minds, values, plain, service, hidden }
    }

    fn may_spend(&self) -> Result<(), Stopped> {
        let Some(serving) = self.service.and_then(|service| self.kept.services.get(service)) else { return Ok(()) };
        self.kept.budget.allows(&serving.service.name).map_err(Stopped::too_dear)
    }

    /// Asks whoever follows the service, who wants to see all of a request.
    async fn ask(&self, request: Request<Outgoing>) -> Result<(Request<Outgoing>, Option<Followed>), Stopped> {
        let Some(follower) = self.kept.follower.as_ref().filter(|_| self.service.is_some()) else {
            return Ok((request, None));
        };
        let (mut parts, body) = request.into_parts();
        let (empty, size) = (body.is_end_stream(), body.size_hint().exact().unwrap_or(LARGEST_QUESTION));
        let many = u32::try_from(size / QUESTION_PLACE).unwrap_or(u32::MAX).clamp(1, WHOLE_BODIES as u32);
        let (body, place) = body.gather(&self.kept.whole_bodies, many, LARGEST_QUESTION).await?;
        let question = Question { method: parts.method.as_str(), path: parts.uri.path(), body: &body };
        let (followed, other) = Followed::begin(follower, question).await?;
        let body = other.map_or(body, Into::into);
        if !empty {
            parts.headers.remove(header::TRANSFER_ENCODING);
            parts.headers.insert(header::CONTENT_LENGTH, body.len().into());
        }
        Ok((Request::from_parts(parts, Outgoing::whole(body, place)), Some(followed)))
    }
}

/// What is done with the answer to a request.
#[derive(Default)]
pub(crate) struct Returning {
    hidden: Option<Hidden>,
    /// The service that it costs, and how much was sent there.
    meter: Option<(Arc<Kept>, usize, u64, Option<Followed>)>,
}

impl Returning {
    /// There is no answer.
    pub(crate) fn failed(&self, why: &hyper::Error) {
        if let Some((.., Some(followed))) = &self.meter {
            followed.failed(&why.to_string());
        }
    }

    /// The answer as it may be seen inside.
    pub(crate) fn take(self, mut response: Response<Incoming>) -> Response<Answer> {
        let Some(hidden) = self.hidden else { return response.map(Answer::untouched) };
        hide::in_head(&hidden, &mut response);
        let meter =
            self.meter.map(|(kept, service, sent, followed)| Meter::new(kept, service, sent, &response, followed));
        let readable = hide::is_readable(response.headers());
        let plan = hidden.plan().filter(|_| readable && !response.body().is_end_stream());
        if plan.is_some() {
            // What is put in place may have another length.
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        response.map(|body| Answer::new(body, plan, meter))
    }
}

impl Stopped {
    pub(crate) fn new(reason: Reason) -> Self {
        Self { reason, secret: None, words: None }
    }

    fn too_dear(words: String) -> Self {
        Self { words: Some(words), ..Self::new(Reason::BudgetSpent) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.reason {
            Reason::BudgetSpent => StatusCode::TOO_MANY_REQUESTS,
            Reason::NotARequest => StatusCode::BAD_REQUEST,
            _ => StatusCode::FORBIDDEN,
        }
    }
}

impl From<NoLeave> for Stopped {
    fn from(no: NoLeave) -> Self {
        match no {
            NoLeave::TooDear(words) => Self::too_dear(words),
            NoLeave::Unfit(words) => Self { words: Some(words), ..Self::new(Reason::NotARequest) },
        }
    }
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self { secret: refusal.secret, ..Self::new(refusal.reason) }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.in_words())?;
        if let Some(secret) = &self.secret {
            write!(f, " (secret `{secret}`)")?;
        }
        self.words.as_ref().map_or(Ok(()), |words| write!(f, ": {words}"))
    }
}

impl std::error::Error for Stopped {}
