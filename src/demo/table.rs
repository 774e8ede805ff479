//! The demo's table.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use super::Run;

/// The policies side by side, 80 columns at most.
pub(super) fn render(runs: &[Run]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["policy", "requests", "prefix hit rate", "TTFT p50", "TTFT p90"]);
    for Run { policy, seen } in runs {
        let mut ttft = seen.ttft.clone();
        ttft.sort_unstable();
        let hits = 100.0 * seen.cached_tokens as f64 / seen.prompt_tokens.max(1) as f64;
        table.add_row([
            (*policy).to_owned(),
            ttft.len().to_string(),
            format!("{hits:.1} %"),
            millis(quantile(&ttft, 50)),
            millis(quantile(&ttft, 90)),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("\n{table}\n")
}

/// Nearest-rank quantile of sorted times.
fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied().unwrap_or_default()
}

fn millis(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::{super::traffic::Seen, *};

    #[test]
    fn the_table_shows_hit_rate_and_quantiles_and_fits_80_columns() {
        let seen =
            Seen { ttft: (1..=10).rev().map(Duration::from_millis).collect(), prompt_tokens: 1000, cached_tokens: 250 };

        let text = render(&[Run { policy: "round_robin", seen }]);

        assert!(text.contains("25.0 %") && text.contains(" 5 ms") && text.contains(" 9 ms"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
