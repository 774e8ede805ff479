//! Label values: closed enums, one word a value.
//!
//! The words are part of the interface: dashboards and alerts name them.

/// Makes an enum whose values are label values, with the list of all and the word of each.
macro_rules! label_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$value_doc])* $value,)* }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$value),*];

            /// The label value.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$value => $word),* }
            }
        }
    };
}

label_enum! {
    /// Where a request was served; the `route` label.
    Route {
        /// By a replica of the pool.
        Replica = "replica",
        /// By a hosted model.
        Fallback = "fallback",
    }
}

label_enum! {
    /// Who counted cached tokens; the `source` label.
    Source {
        /// The gateway, at dispatch.
        Predicted = "predicted",
        /// The engine, in its usage.
        Reported = "reported",
    }
}

label_enum! {
    /// A missed objective; the `objective` label.
    Objective {
        /// Time to first token.
        Ttft = "ttft",
        /// Time per output token.
        Tpot = "tpot",
    }
}

label_enum! {
    /// Why the gateway refused a request; the `reason` label of `gateway_rejected_total`.
    Reason {
        /// The body is not what it must be.
        Body = "body",
        /// No or a wrong key.
        Auth = "auth",
        /// No such model.
        NoModel = "no_model",
        /// A token cap.
        Cap = "cap",
        /// A rate limit.
        Rate = "rate",
        /// Body memory or connections.
        Overload = "overload",
        /// Every usable replica is full.
        Saturated = "saturated",
        /// The queue is full.
        QueueFull = "queue_full",
        /// The wait in the queue was too long.
        QueueTimeout = "queue_timeout",
        /// No replica is usable.
        NoReplica = "no_replica",
        /// The gateway shuts down.
        Draining = "draining",
    }
}

label_enum! {
    /// What a replica did that sent a request elsewhere; the `cause` label of `gateway_retries_total`.
    Cause {
        /// It refused the connection.
        Connect = "connect",
        /// It closed the connection before an answer.
        Reset = "reset",
        /// It was silent for too long.
        Timeout = "timeout",
        /// It said that it is full.
        Saturated = "saturated",
        /// It said that it shuts down.
        ShuttingDown = "shutting_down",
        /// It answered 5xx.
        Status = "status",
        /// It broke HTTP framing.
        Protocol = "protocol",
    }
}

label_enum! {
    /// What came of reading the configuration again; the `result` label of `gateway_config_reloads_total`.
    Reload {
        /// The new keys are in place.
        Applied = "applied",
        /// The file has an error; nothing changed.
        Refused = "refused",
    }
}

label_enum! {
    /// Why generated tokens were wasted; the `cause` label of `gateway_wasted_tokens_total`.
    Waste {
        /// The client left.
        Cancelled = "cancelled",
        /// The replica failed in mid-stream.
        Failed = "failed",
        /// The engine ignored a cap.
        OverCap = "over_cap",
    }
}

label_enum! {
    /// Why a hosted model was not asked, or gave no answer; the `reason` label of `gateway_fallback_skipped_total`.
    Skip {
        /// Its circuit breaker is open.
        Breaker = "breaker",
        /// Its budget is spent.
        Budget = "budget",
        /// The request is too long for its context.
        Context = "context",
        /// It does not read this kind of content.
        Content = "content",
        /// It was asked and refused the connection, or broke it.
        Connect = "connect",
        /// It was asked and was silent for too long.
        Timeout = "timeout",
        /// It was asked and answered 429.
        Limited = "limited",
        /// It was asked and refused its key.
        Key = "key",
        /// It was asked and failed otherwise.
        Failed = "failed",
    }
}

label_enum! {
    /// Where the spend of a hosted model is counted; the `window` label.
    Window {
        /// The hour of the clock.
        Hour = "hour",
        /// The day, in UTC.
        Day = "day",
    }
}

label_enum! {
    /// Why a hosted model was asked; the `reason` label of `gateway_fallback_total`.
    FallbackReason {
        /// Every usable replica is full.
        Saturated = "saturated",
        /// No replica is usable.
        Down = "down",
    }
}
