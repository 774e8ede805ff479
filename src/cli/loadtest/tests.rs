use clap::{CommandFactory, Parser};

use super::*;
use crate::loadtest::plan::{LoadPlan, Mode, Plan};

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: LoadtestArgs,
}

fn plan(flags: &str) -> anyhow::Result<Plan> {
    let line = Line::try_parse_from(std::iter::once("loadtest").chain(flags.split_whitespace()))?;
    flags::plan(&line.args)
}

#[test]
fn the_command_lines_of_the_seed_tool_make_plans() {
    let first = plan("--mock --rate 8 --num-requests 100 --slo-ttft-ms 200 --slo-tpot-ms 20").unwrap();
    assert_eq!((first.requests, first.asked.objectives.len()), (Some(100), 2));
    let LoadPlan::Open(pattern) = first.load else { panic!("{first:?}") };
    assert_eq!(pattern.rate, 8.0);

    let second = plan("--mock --sweep 2,8,32 --num-requests 120 --output-len 48").unwrap();
    assert!(matches!(&second.mode, Mode::Sweep(rates) if rates == &[2.0, 8.0, 32.0]));
    assert_eq!(second.spec.output, 48);

    let third = plan(
        "--base-url http://127.0.0.1:8000/v1 --endpoint chat --sweep 1,2,4,8,16 --num-requests 400 --input-len 1024 \
         --output-len 256 --len-dist lognormal --ignore-eos --slo-ttft-ms 500 --slo-tpot-ms 40 --json-out run.jsonl",
    )
    .unwrap();
    assert!(third.spec.style.ignore_eos && third.spec.shape == Shape::Lognormal);
    assert_eq!(third.targets[0].url("/v1/models"), "http://127.0.0.1:8000/v1/models");
}

#[test]
fn the_issues_goodput_line_is_read() {
    let plan = plan("--mock --goodput ttft:500 tpot:40 e2el:5000").unwrap();
    let limits: Vec<f64> = plan.asked.objectives.iter().map(|one| one.limit_ms).collect();
    assert_eq!(limits, [500.0, 40.0, 5000.0]);
}

#[test]
fn a_wrong_flag_is_named_with_its_value_and_a_remedy() {
    for (flags, words) in [
        ("", "--base-url URL"),
        ("--base-url 127.0.0.1:8000", "write http://127.0.0.1:8000"),
        ("--mock --rate 0", "--rate 0: must be above 0"),
        ("--mock --users 0", "--users 0: must be at least 1"),
        ("--mock --cancel-rate 2", "--cancel-rate 2: must be a share"),
        ("--mock --goodput ttfb:5", "write METRIC:MS"),
        ("--mock --ramp x", "FROM:SECONDS"),
        ("--mock --find-capacity", "needs an objective"),
        ("--mock --tenant a", "NAME=WEIGHT"),
        ("--mock --tenant a=1:NO_SUCH_VARIABLE_HERE", "NO_SUCH_VARIABLE_HERE is not set"),
        ("--mock --trace /no/such/file", "cannot be read"),
        ("--mock --max-usd 1 --price 3", "IN:OUT"),
        ("--mock --extra-body [1]", "no JSON object"),
        ("--mock --sweep 1,inf", "--sweep inf"),
    ] {
        let error = format!("{:#}", plan(flags).unwrap_err());
        assert!(error.contains(words), "{flags}: {error}");
    }
}

#[test]
fn flags_that_exclude_each_other_are_refused() {
    for flags in ["--mock --rate 1 --users 2", "--mock --sweep 1 --rate 2", "--mock --api-key x", "--max-usd 1 --mock"]
    {
        assert!(plan(flags).is_err(), "{flags}");
    }
}

#[test]
fn help_fits_eighty_columns() {
    let help = Line::command().term_width(80).render_long_help().to_string();
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}
