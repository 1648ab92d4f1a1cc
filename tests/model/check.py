"""Check the models: nothing breaks with every rule on, something breaks with each rule off.

    python3 check.py            default bounds, about four minutes on two cores
    python3 check.py --fast     small scenarios and the mutants that they show, seconds
    python3 check.py --deep     larger bounds; every mutant in every default scenario
    python3 check.py --piece 0/12                  every twelfth job, from the first one on
    python3 check.py --write    the default run, then refresh README.md and RESULTS.md (with --only: one model's part)
    python3 check.py --trace append.owner_word     one mutant's counterexample
    python3 check.py --only replicas               one model; `replicas.fence`: one mutant; `growth,groups`: two models

Exit status 1 if the rules have a hole, or if a mutant that should be found is not.
"""

import sys
import time
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

from engine import explore
from scenarios import (
    DEEP,
    FAST,
    MODELS,
    NEEDS_MORE,
    NOT_NEEDED_ALONE,
    ONLY_IN_LARGEST,
    PAIRS,
    SCENARIOS,
    SHOWN_BY,
)

HERE = Path(__file__).parent
MARK = "<!-- generated -->"
ORDER = {model: number for number, model in enumerate(MODELS)}
LIMIT = {False: 1_000_000, True: 4_000_000}


class Job(NamedTuple):
    model: str
    off: tuple
    scenarios: tuple          # names, tried in this order
    limit: int


class Outcome(NamedTuple):
    job: Job
    scenario: str             # where the violation is, or the last one tried
    states: int               # of that scenario, or of all of them if nothing broke
    depth: int
    complete: bool
    problem: str
    trace: tuple
    seconds: float


def run(job):
    began, states, complete, depth = time.time(), 0, True, 0
    known = SCENARIOS[job.model] | DEEP[job.model]
    for scenario in job.scenarios:
        result = explore(MODELS[job.model](off=job.off, **known[scenario]), job.limit)
        states, complete = states + result.states, complete and result.complete
        depth = max(depth, result.depth)
        if result.problem:
            return Outcome(job, scenario, result.states, result.depth, True, result.problem,
                           result.trace, time.time() - began)
    return Outcome(job, scenario, states, depth, complete, "", (), time.time() - began)


def fast_jobs():
    """The part that fits into seconds: each small scenario complete, and each mutant that one of them shows."""
    for model, names in FAST.items():
        for scenario in names:
            yield Job(model, (), (scenario,), LIMIT[False])
        for rule in MODELS[model].rules:
            shown = SHOWN_BY.get((model, rule))
            if (model, rule) not in NOT_NEEDED_ALONE | NEEDS_MORE and (not shown or shown in names):
                yield Job(model, (rule,), (shown,) if shown else names, LIMIT[False])


def jobs(deep):
    """All rules on, one job per scenario; then one job per mutant and per pair."""
    for model in MODELS:
        names = list(SCENARIOS[model]) + (list(DEEP[model]) if deep else [])
        for scenario in reversed(names):                     # the long ones first
            yield Job(model, (), (scenario,), LIMIT[deep])
    for model, kind in MODELS.items():
        for rule in kind.rules:
            yield Job(model, (rule,), mutant_scenarios(model, rule, deep), LIMIT[deep])
    for model, pair in PAIRS:
        yield Job(model, pair, tuple(SCENARIOS[model]), LIMIT[deep])


def mutant_scenarios(model, rule, deep):
    names = tuple(SCENARIOS[model])
    if (model, rule) in SHOWN_BY and not deep:
        return (SHOWN_BY[model, rule],)
    if deep or model != "append":
        return names
    if (model, rule) in ONLY_IN_LARGEST:
        return names[-1:]
    return names[:-2] if (model, rule) in NOT_NEEDED_ALONE else names[:-1]


def concerns(job, only):
    """Does a job belong to one of the models, or of the mutants, that `--only` names?"""
    named = [each.partition(".") for each in only.split(",")]
    return any(model in ("", job.model) and rule in ("", *job.off) for model, _, rule in named)


def bounds(model, scenario):
    known = SCENARIOS[model] | DEEP[model]
    return ", ".join(f"{word} {value}" for word, value in known[scenario].items())


def wrong(outcome):
    """Does this outcome contradict what the tables above claim?"""
    model, off = outcome.job.model, outcome.job.off
    if not off:
        return bool(outcome.problem)
    expected = len(off) > 1 or (model, off[0]) not in NOT_NEEDED_ALONE
    return expected != bool(outcome.problem)


def report(outcome):
    model, off = outcome.job.model, " + ".join(outcome.job.off) or "all rules on"
    found = outcome.problem or "no violation"
    steps = f", {len(outcome.trace)} steps" if outcome.trace else ""
    partly = "" if outcome.complete else " (stopped at the limit)"
    flag = "WRONG " if wrong(outcome) else ""
    print(f"{flag}{model}: {off}: {found}{steps} [{outcome.scenario}; {outcome.states} states{partly}, "
          f"{outcome.seconds:.1f} s]", flush=True)
    if wrong(outcome):
        print(*("    " + step for step in outcome.trace), sep="\n")


def write_documents(outcomes):
    """Refresh the tables and the traces of the models of this run; those of other models remain."""
    ran = {o.job.model for o in outcomes}
    readme, results = HERE / "README.md", HERE / "RESULTS.md"
    head, _, generated = readme.read_text().partition(MARK)
    readme.write_text(head + MARK + "\n\n" + tables(outcomes, rows_of_others(generated, ran)))
    kept = [trace for trace in results.read_text().split("## ")[1:] if trace.partition(":")[0] not in ran]
    traces = [f"{o.job.model}: without {' + '.join(o.job.off)}\n\n{o.problem} "
              f"({bounds(o.job.model, o.scenario)})\n\n"
              + "".join(f"{n}. {step}\n" for n, step in enumerate(o.trace, 1))
              for o in outcomes if o.trace]
    traces = sorted((trace.strip() for trace in kept + traces), key=lambda trace: ORDER.get(trace.partition(":")[0], 0))
    head = "# Shortest counterexamples (written by `check.py --write`)\n"
    results.write_text("\n".join([head, *(f"## {trace}\n" for trace in traces)]))


def rows_of_others(generated, ran):
    """Rows of the present tables, by title, without those of the models of this run."""
    rows = {}
    for section in generated.split("## ")[1:]:
        title, *lines = section.splitlines()
        cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line.startswith("| ")]
        rows[title] = [row for row in cells[1:] if row[0] in ORDER and row[0] not in ran]
    return rows


def tables(outcomes, others):
    alone = [o for o in outcomes if len(o.job.off) == 1]
    sections = [
        ("All rules on: no violation", ("model", "scenario", "bounds", "states", "longest path"),
         [(o.job.model, o.scenario, bounds(o.job.model, o.scenario), f"{o.states:,}", o.depth)
          for o in outcomes if not o.job.off]),
        ("One rule off: what breaks", ("model", "rule", "switch", "asks", "breaks", "steps", "scenario"),
         [(o.job.model, *described(o), o.problem, len(o.trace), o.scenario) for o in alone if o.problem]),
        ("Two rules off", ("model", "switches", "breaks", "steps"),
         [(o.job.model, " + ".join(o.job.off), o.problem, len(o.trace)) for o in outcomes if len(o.job.off) > 1]),
        ("Not needed alone within these bounds", ("model", "rule", "switch", "asks", "why", "states"),
         [(o.job.model, *described(o), NOT_NEEDED_ALONE.get((o.job.model, o.job.off[0]), "unexplained"), f"{o.states:,}")
          for o in alone if not o.problem]),
    ]
    return "\n".join(table(title, columns, sorted(others.get(title, []) + rows, key=lambda row: ORDER[row[0]]))
                     for title, columns, rows in sections)


def described(outcome):
    """Rule, switch and wording of a mutant with one rule off."""
    switch, = outcome.job.off
    rule, asks = MODELS[outcome.job.model].rules[switch]
    return rule, f"`{switch}`", asks


def table(title, columns, rows):
    counts = {"states", "steps", "longest path"}
    rule = "|".join("---:" if column in counts else "---" for column in columns)
    lines = [f"## {title}", "", f"| {' | '.join(columns)} |", f"|{rule}|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def main(arguments):
    deep = "--deep" in arguments
    if "--trace" in arguments:
        model, rule = arguments[arguments.index("--trace") + 1].split(".")
        outcome = run(Job(model, (rule,), mutant_scenarios(model, rule, False), LIMIT[True]))
        print(outcome.problem or "no violation", *("  " + step for step in outcome.trace), sep="\n")
        return 0
    if "--write" in arguments and ({"--fast", "--deep", "--piece"} & set(arguments) or "." in "".join(arguments)):
        print("--write needs the default run of complete models: no --fast, --deep, --piece, and no single rule")
        return 1
    began, outcomes = time.time(), []
    piece, pieces = 0, 1
    only = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
    if "--piece" in arguments:
        piece, pieces = map(int, arguments[arguments.index("--piece") + 1].split("/"))
    with Pool(2 if pieces == 1 else 1) as pool:
        chosen = [job for job in (fast_jobs() if "--fast" in arguments else jobs(deep)) if concerns(job, only)][piece::pieces]
        for outcome in pool.imap(run, chosen, chunksize=1):
            outcomes.append(outcome)
            report(outcome)
    print(f"{sum(o.states for o in outcomes):,} states, {time.time() - began:.0f} s, "
          f"{sum(map(wrong, outcomes))} surprises")
    if "--write" in arguments:
        write_documents(outcomes)
    return int(any(map(wrong, outcomes)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
