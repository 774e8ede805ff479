//! `gateway loadtest` against servers whose timing is known, and as a command.
//!
//! The scripted server notes when it wrote each token; the client's figures must agree within 1 ms or 1 %. A machine
//! that runs other things delays one side or the other now and then, so a figure has a few tries: a wrong definition is
//! wrong every time.

mod command;
mod figures;
mod server;
mod streams;
