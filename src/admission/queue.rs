//! Who is next: deficit round robin over tenants, by the tokens that their requests ask for.
//!
//! Three classes stand above it. A higher class goes first, but one turn in [`YIELD`] belongs to the class that was
//! passed over the longest, so none starves. Inside a tenant the order is that of arrival. A request that costs more
//! than one round's quantum waits for several rounds, as the tokens it takes are somebody else's.

use std::collections::VecDeque;

use crate::types::Priority;

/// Tokens that each tenant may take in one round.
const QUANTUM: u64 = 2048;

/// One turn in so many goes to the class that waits the longest.
const YIELD: u64 = 8;

/// Whose request it is: a hash of the key's group or id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u64);

/// What a request brings to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Class of the key.
    pub class: Priority,
    /// Whose request it is.
    pub tenant: TenantId,
    /// Tokens that it asks for.
    pub cost: u64,
}

/// Where a request stands, to take it out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    class: Priority,
    tenant: TenantId,
    number: u64,
}

/// Requests that wait, with `T` to wake each by.
#[derive(Debug)]
pub struct FairQueue<T> {
    classes: [Class<T>; 3],
    turns: u64,
    number: u64,
}

#[derive(Debug)]
struct Class<T> {
    /// Tenants with something to wait for, in the order of their turns; the first is at its turn.
    flows: VecDeque<Flow<T>>,
    /// Turn at which this class was last served.
    served: u64,
}

#[derive(Debug)]
struct Flow<T> {
    tenant: TenantId,
    /// Tokens that it may take before its turn ends.
    deficit: u64,
    /// Whether this turn's quantum has been added.
    topped: bool,
    /// Tokens of all its entries.
    cost: u64,
    entries: VecDeque<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    number: u64,
    cost: u64,
    item: T,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        let class = || Class { flows: VecDeque::new(), served: 0 };
        Self { classes: [class(), class(), class()], turns: 0, number: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows().map(|flow| flow.entries.len()).sum()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.flows.is_empty())
    }

    /// Whether more than one tenant waits.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let mut flows = self.flows().map(|flow| flow.tenant);
        let first = flows.next();
        flows.any(|tenant| Some(tenant) != first)
    }

    /// Tokens of all that wait.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.flows().map(|flow| flow.cost).sum()
    }

    /// Adds a request behind its tenant's others.
    pub fn push(&mut self, ticket: Ticket, item: T) -> Place {
        self.add(ticket, item, VecDeque::push_back)
    }

    /// Puts a request that had its turn and found no room in front of its tenant's others, and its tenant's turn next.
    pub fn push_front(&mut self, ticket: Ticket, item: T) -> Place {
        let place = self.add(ticket, item, VecDeque::push_front);
        let flows = &mut self.class(ticket.class).flows;
        if let Some(at) = flows.iter().position(|flow| flow.tenant == ticket.tenant)
            && let Some(mut flow) = flows.remove(at)
        {
            flow.deficit = flow.deficit.saturating_add(ticket.cost.max(1));
            flows.push_front(flow);
        }
        place
    }

    fn add(&mut self, ticket: Ticket, item: T, put: fn(&mut VecDeque<Entry<T>>, Entry<T>)) -> Place {
        let Ticket { class, tenant, cost } = ticket;
        self.number += 1;
        let number = self.number;
        let cost = cost.max(1);
        let flows = &mut self.class(class).flows;
        let at = flows.iter().position(|flow| flow.tenant == tenant).unwrap_or_else(|| {
            flows.push_back(Flow { tenant, deficit: 0, topped: false, cost: 0, entries: VecDeque::new() });
            flows.len() - 1
        });
        if let Some(flow) = flows.get_mut(at) {
            flow.cost += cost;
            put(&mut flow.entries, Entry { number, cost, item });
        }
        Place { class, tenant, number }
    }

    /// Takes a request out that waits no longer. `None` if it had its turn already.
    pub fn remove(&mut self, place: Place) -> Option<T> {
        let flows = &mut self.class(place.class).flows;
        let at = flows.iter().position(|flow| flow.tenant == place.tenant)?;
        let flow = flows.get_mut(at)?;
        let index = flow.entries.iter().position(|entry| entry.number == place.number)?;
        let entry = flow.entries.remove(index)?;
        flow.cost -= entry.cost;
        if flow.entries.is_empty() {
            flows.remove(at);
        }
        Some(entry.item)
    }

    /// The next request and its tokens, taken out.
    pub fn pop(&mut self) -> Option<(T, u64)> {
        let class = self.turn()?;
        self.turns += 1;
        let turns = self.turns;
        let class = self.classes.get_mut(class)?;
        class.served = turns;
        class.pop().map(|entry| (entry.item, entry.cost))
    }

    /// Takes the newest request of the tenant that has the most tokens here, if that is more than the ticket's tenant
    /// would have with it: the place of a flood goes to whoever floods less.
    pub fn evict_for(&mut self, ticket: Ticket) -> Option<T> {
        let Ticket { tenant, cost, .. } = ticket;
        let own: u64 = self.flows().filter(|flow| flow.tenant == tenant).map(|flow| flow.cost).sum();
        let (class, at, most) = self
            .classes
            .iter()
            .enumerate()
            .flat_map(|(number, class)| class.flows.iter().enumerate().map(move |(at, flow)| (number, at, flow.cost)))
            .max_by_key(|(_, _, cost)| *cost)?;
        if most <= own.saturating_add(cost) {
            return None;
        }
        let flows = &mut self.classes.get_mut(class)?.flows;
        let flow = flows.get_mut(at)?;
        let entry = flow.entries.pop_back()?;
        flow.cost -= entry.cost;
        if flow.entries.is_empty() {
            flows.remove(at);
        }
        Some(entry.item)
    }

    /// Tokens that would be served before the end of a request that came now, its own included.
    ///
    /// In its class each other tenant goes ahead with no more than this one has; higher classes go ahead with all.
    #[must_use]
    pub fn ahead(&self, ticket: Ticket) -> u64 {
        let Ticket { class, tenant, cost } = ticket;
        let mut ahead = 0_u64;
        for (number, other) in self.classes.iter().enumerate() {
            let own: u64 = other.flows.iter().filter(|flow| flow.tenant == tenant).map(|flow| flow.cost).sum();
            let most = match number.cmp(&(class as usize)) {
                std::cmp::Ordering::Less => u64::MAX,
                std::cmp::Ordering::Equal => own.saturating_add(cost),
                std::cmp::Ordering::Greater => continue,
            };
            let others = other.flows.iter().filter(|flow| flow.tenant != tenant);
            ahead = others.fold(ahead.saturating_add(own), |sum, flow| sum.saturating_add(flow.cost.min(most)));
        }
        ahead.saturating_add(cost)
    }

    /// All that wait, taken out, in no promised order.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        let flows = self.classes.iter_mut().flat_map(|class| class.flows.drain(..));
        flows.flat_map(|flow| flow.entries).map(|entry| entry.item)
    }

    fn flows(&self) -> impl Iterator<Item = &Flow<T>> {
        self.classes.iter().flat_map(|class| &class.flows)
    }

    fn class(&mut self, class: Priority) -> &mut Class<T> {
        let [high, normal, low] = &mut self.classes;
        match class {
            Priority::High => high,
            Priority::Normal => normal,
            Priority::Low => low,
        }
    }

    /// The class whose turn it is.
    fn turn(&self) -> Option<usize> {
        let mut waiting = self.classes.iter().enumerate().filter(|(_, class)| !class.flows.is_empty());
        if (self.turns + 1).is_multiple_of(YIELD) {
            waiting.min_by_key(|(_, class)| class.served).map(|(number, _)| number)
        } else {
            waiting.next().map(|(number, _)| number)
        }
    }
}

impl<T> Class<T> {
    fn pop(&mut self) -> Option<Entry<T>> {
        self.skip_rounds();
        // Each step serves or moves one tenant on; after `skip_rounds` one of them can pay within a round.
        for _ in 0..=self.flows.len() {
            let flow = self.flows.front_mut()?;
            if !std::mem::replace(&mut flow.topped, true) {
                flow.deficit = flow.deficit.saturating_add(QUANTUM);
            }
            if flow.entries.front().is_some_and(|entry| entry.cost <= flow.deficit) {
                return self.serve();
            }
            flow.topped = false;
            self.flows.rotate_left(1);
        }
        // Not reached; were it, the first in line goes rather than nobody.
        self.serve()
    }

    /// Serves the first tenant's first request.
    fn serve(&mut self) -> Option<Entry<T>> {
        let flow = self.flows.front_mut()?;
        let entry = flow.entries.pop_front()?;
        flow.deficit = flow.deficit.saturating_sub(entry.cost);
        flow.cost -= entry.cost;
        if flow.entries.is_empty() {
            // What it did not use is lost: a tenant cannot save up turns while it asks for nothing.
            self.flows.pop_front();
        }
        Some(entry)
    }

    /// Adds the rounds in which nobody could pay, all at once.
    fn skip_rounds(&mut self) {
        let rounds = |flow: &Flow<T>| {
            let cost = flow.entries.front().map_or(0, |entry| entry.cost);
            let ready = flow.deficit + if flow.topped { 0 } else { QUANTUM };
            cost.saturating_sub(ready).div_ceil(QUANTUM)
        };
        let idle = self.flows.iter().map(rounds).min().unwrap_or(0);
        for flow in &mut self.flows {
            flow.deficit = flow.deficit.saturating_add(idle.saturating_mul(QUANTUM));
        }
    }
}

#[cfg(test)]
mod tests;
