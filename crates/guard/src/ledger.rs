//! Uses of tools in the threads that clients name, so that a client that leaves out earlier messages gets no new
//! budget. Bounded, and forgotten after a while.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use fathom_base::clock::Clock;
use serde_json::Value;

use crate::threads::{MessageId, chained};

/// Threads that are remembered at most.
const MOST_THREADS: usize = 16 << 10;
/// Calls and results that are remembered of a thread at most.
const MOST_USES: usize = 4096;
/// Seconds for which an unused thread is remembered.
const EXPIRES_S: f64 = 3600.0;

/// Uses of tools in one thread.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Uses>);

#[derive(Debug, Default)]
struct Uses {
    /// Names and arguments of calls by their identity.
    calls: BTreeMap<MessageId, (String, Value)>,
    /// Calls without an identity so far.
    unnamed: u64,
    /// Names of tools and bytes of results by their identity.
    results: BTreeMap<MessageId, (String, usize)>,
}

/// Identity of a result: its call and its text.
fn result_id(call: Option<&str>, text: &str) -> MessageId {
    chained(&[0; 32], call.unwrap_or_default(), text)
}

impl Ledger {
    fn uses(&self) -> std::sync::MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call that passed; one without an identity is another one each time.
    pub(crate) fn called(&self, id: Option<MessageId>, name: &str, arguments: &Value) {
        let mut uses = self.uses();
        if uses.calls.len() < MOST_USES {
            uses.unnamed += u64::from(id.is_none());
            let id = id.unwrap_or_else(|| chained(&[0; 32], "call", &uses.unnamed.to_string()));
            uses.calls.insert(id, (name.to_string(), arguments.clone()));
        }
    }

    /// Forgets a call that is judged again.
    pub(crate) fn forget(&self, id: &MessageId) {
        self.uses().calls.remove(id);
    }

    /// Arguments of the calls of a tool.
    pub(crate) fn calls(&self, name: &str) -> Vec<Value> {
        let uses = self.uses();
        uses.calls.values().filter(|(of, _)| of == name).map(|(_, arguments)| arguments.clone()).collect()
    }

    /// Notes a result that passed; the same one counts once.
    pub(crate) fn answered(&self, name: &str, call: Option<&str>, text: &str) {
        let mut uses = self.uses();
        if uses.results.len() < MOST_USES {
            uses.results.insert(result_id(call, text), (name.to_string(), text.len()));
        }
    }

    /// Bytes of the results of a tool other than this one.
    pub(crate) fn other_bytes(&self, name: &str, call: Option<&str>, text: &str) -> usize {
        let own = result_id(call, text);
        let uses = self.uses();
        let others = uses.results.iter().filter(|(id, (of, _))| **id != own && of == name);
        others.map(|(_, (_, bytes))| bytes).sum()
    }
}

/// The ledgers of threads.
pub(crate) struct Ledgers {
    clock: Clock,
    threads: Mutex<HashMap<MessageId, (Arc<Ledger>, f64)>>,
}

impl Ledgers {
    pub fn new(clock: Clock) -> Ledgers {
        Ledgers { clock, threads: Mutex::default() }
    }

    /// The ledger of a key's thread; `None` for a client that names no thread.
    pub fn of(&self, key: Option<&str>, thread: Option<&str>) -> Option<Arc<Ledger>> {
        let id = chained(&[0; 32], key.unwrap_or_default(), thread?);
        let now_s = self.clock.now_s();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() >= MOST_THREADS && !threads.contains_key(&id) {
            threads.retain(|_, (_, used_s)| now_s - *used_s < EXPIRES_S);
            // The half that was not used for longest, so that this is seldom done.
            if threads.len() >= MOST_THREADS {
                let mut times: Vec<f64> = threads.values().map(|(_, used_s)| *used_s).collect();
                times.sort_by(f64::total_cmp);
                let middle = times[times.len() / 2];
                threads.retain(|_, (_, used_s)| *used_s > middle);
            }
        }
        let entry = threads.entry(id).or_insert_with(|| (Arc::default(), now_s));
        if now_s - entry.1 >= EXPIRES_S {
            entry.0 = Arc::default();
        }
        entry.1 = now_s;
        Some(entry.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_one_ledger_until_it_is_forgotten() {
        let now = Arc::new(Mutex::new(0.0));
        let reads = now.clone();
        let ledgers = Ledgers::new(Clock::of(move || *reads.lock().unwrap()));
        let of = |key, thread| ledgers.of(key, Some(thread)).unwrap();
        let (id, arguments) = (chained(&[0; 32], "", "1"), Value::Null);
        of(None, "a").called(Some(id), "pay", &arguments);
        of(None, "a").called(Some(id), "pay", &arguments);
        of(None, "a").called(None, "pay", &arguments);
        of(None, "a").called(None, "pay", &arguments);
        of(None, "a").forget(&id);
        assert_eq!(of(None, "a").calls("pay").len(), 2);
        of(None, "a").answered("pay", Some("c1"), "four");
        assert_eq!((of(None, "a").calls("pay").len(), of(None, "a").calls("buy").len()), (2, 0));
        let bytes = |call, text| of(None, "a").other_bytes("pay", Some(call), text);
        assert_eq!((bytes("c1", "four"), bytes("c2", "four")), (0, 4));
        assert!(of(Some("k"), "a").calls("pay").is_empty() && of(None, "b").calls("pay").is_empty());
        assert!(ledgers.of(None, None).is_none());
        *now.lock().unwrap() = EXPIRES_S;
        assert!(of(None, "a").calls("pay").is_empty());
        (0..MOST_THREADS + 5).for_each(|at| _ = ledgers.of(None, Some(&at.to_string())).unwrap());
        assert!(ledgers.threads.lock().unwrap().len() <= MOST_THREADS);
    }
}
