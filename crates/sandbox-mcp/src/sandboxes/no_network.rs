//! What a sandbox without a network wanted to connect to: nobody is there to refuse it one by one, but its kernel counts
//! the packets that had no way to go.

use std::{sync::atomic::Ordering, time::Duration};

use sandbox_core::{
    Denial, Policy, Reason,
    exec::{Exec, Exit},
};

use super::{JobEvent, Session, What, way_out::WayOut};

/// What a kernel tells about its network, at most.
const COUNTS: usize = 64 << 10;
/// Nobody waits longer for it.
const A_MOMENT: Duration = Duration::from_secs(1);
/// More are not counted.
const MANY: u64 = 1 << 32;
/// As the history has it.
const VERDICT: &str = "no_network";

impl Session {
    /// What was refused on the way out and nobody was told yet, after a command that ended like this.
    pub async fn take_refused(&self, exit: Exit) -> Vec<Denial> {
        let mut refused = self.way_out().map(WayOut::take_refused).unwrap_or_default();
        let policy = &self.facts().spec.policy;
        if exit != Exit::Code(0) && !policy.reaches_something() {
            // Who is root inside may answer what they like, but keeps nobody waiting for it.
            let look = tokio::time::timeout(A_MOMENT * 2, self.packets_without_route());
            let counted = look.await.unwrap_or_default().min(MANY);
            // The kernel never counts down: what was not counted this time is not forgotten.
            let times = counted.saturating_sub(self.unrouted.fetch_max(counted, Ordering::Relaxed));
            if times > 0 {
                self.record(event(times));
                refused.push(denial(policy));
            }
        }
        refused
    }

    async fn packets_without_route(&self) -> u64 {
        let Ok(client) = self.client().await else { return 0 };
        // By its whole path: commands may put another one where their search begins.
        let mut count = Exec::argv(["/bin/cat", "/proc/net/snmp", "/proc/net/snmp6"]);
        count.timeout = Some(A_MOMENT);
        let Ok(mut counted) = client.spawn(&count).await else { return 0 };
        let mut told = Vec::new();
        while let Ok(JobEvent::Output { data, .. }) = counted.next().await {
            told.extend(data);
            if told.len() > COUNTS {
                break;
            }
        }
        let told = String::from_utf8_lossy(&told);
        sandbox_linux::packets_without_route(&told, &told)
    }
}

/// What the history has of it.
pub fn event(times: u64) -> What {
    What::Connection {
        target: "(not named)".to_owned(),
        address: None,
        rule: Some("network = none".to_owned()),
        verdict: VERDICT.to_owned(),
        refused: true,
        secret: None,
        times,
        sent: 0,
        received: 0,
        elapsed: Duration::ZERO,
    }
}

/// What a person or a model is told.
pub fn denial(policy: &Policy) -> Denial {
    Denial {
        reason: Reason::Network,
        target: "a connection".to_owned(),
        rule: format!("network = {}", policy.network),
        level: policy.name.clone(),
        message: "something wanted to connect, and this policy gives no network".to_owned(),
        how_to_ask:
            "Bring what is needed as files, or use a new sandbox with a network: yolo-2 (level 2) reaches public web \
                     sites, yolo-3 (level 3) package registries too"
                .to_owned(),
        verdict: Some(VERDICT.to_owned()),
    }
}
