//! `JUnit` XML for CI: one case an objective and level, one for the run's validity.

use super::Setup;
use crate::loadtest::{level::Level, verdict::Objectives, verdict::Validity};

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The file.
#[must_use]
pub fn xml(levels: &[Level], setup: &Setup) -> String {
    let (mut cases, mut tests, mut failures, mut errors, mut skipped) = (String::new(), 0, 0, 0, 0);
    for level in levels {
        let summary = &level.summary;
        let (name, time) = (escaped(&level.name), summary.duration);
        let mut case = |what: &str, inner: &str| {
            tests += 1;
            addln!(cases, "  <testcase classname=\"{name}\" name=\"{what}\" time=\"{time:.3}\">{inner}</testcase>");
        };
        let reasons = escaped(&summary.judged.reasons.join("; "));
        match summary.judged.verdict {
            Validity::Invalid => {
                errors += 1;
                case("run is valid", &format!("<error message=\"{reasons}\"/>"));
            }
            Validity::Degraded => case("run is valid", &format!("<system-out>{reasons}</system-out>")),
            Validity::Valid => case("run is valid", ""),
        }
        let Some((objectives, share)) = summary.objectives.zip(summary.good) else { continue };
        let text = format!(
            "{:.1} % ({:.1}-{:.1}) of the requests within {}, goal {:.1} %",
            share.share * 100.0,
            share.low * 100.0,
            share.high * 100.0,
            setup.objectives.join(" "),
            setup.goal * 100.0
        );
        let text = escaped(&text);
        match objectives {
            Objectives::Pass => case("objectives", &format!("<system-out>{text}</system-out>")),
            Objectives::Missed => {
                failures += 1;
                case("objectives", &format!("<failure message=\"{text}\"/>"));
            }
            Objectives::Undecided => {
                skipped += 1;
                case("objectives", &format!("<skipped message=\"undecided: {text}\"/>"));
            }
        }
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"gateway loadtest {}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">\n{cases}</testsuite>\n",
        escaped(&setup.target)
    )
}
