"""What a cleaned buffer is worth: `python benchmarks/training/run.py [--seeds N] [--fault NAME] [--json FILE]`.

A MaskablePPO is trained for a few rollouts, and the last one is dumped with the actor that made it.
Faults are put into a tenth of its rows, `bufcheck clean` takes those out (cleaned) or mends what it can
(repaired), and the same PPO makes its first update on each buffer, several times with other minibatches.
To it the cleaned and the repaired one must be like the original, within the noise of the original's own
updates, and the faulty one must not. Faults that are too weak for one update to show are run as well,
and said to be.

The exit code is 1 if that does not hold. Needs `pip install '.[test]'`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ppo
from proof import MEASURES, TRIALS, Bench, Buffer, Proof, spread

STEPS = 1024
"""Of each of two environments: a rollout has 2,048 rows."""
HEAD = (
    f"  {'buffer':24} {'rows':>5}  {'ratio error':>11}  {'approx. KL':>21} {'off':>7}"
    f"  {'clip fraction':>17} {'off':>7}"
)


def line(name: str, buffer: Buffer, verdict: str = "") -> str:
    (kl, kl_noise), (clip, clip_noise) = (spread(buffer.updates, measure) for measure in MEASURES)
    off = [f"{buffer.off(measure):7.3g}" if verdict else "" for measure in MEASURES]
    return (
        f"  {name:24} {buffer.rows:5}  {buffer.ratio_error:11.1e}  {kl:11.5g} ± {kl_noise:7.2g} {off[0]:>7}"
        f"  {clip:8.4f} ± {clip_noise:6.4f} {off[1]:>7}  {verdict}"
    ).rstrip()


def verdict(name: str, buffer: Buffer, proof: Proof) -> str:
    if name != "faulty":
        return "matches" if buffer.matches else "DOES NOT MATCH"
    if buffer.stands_out:
        return "stands out"
    return f"hardly seen: {proof.trial.quiet}" if proof.trial.quiet else "DOES NOT STAND OUT"


def tell(proof: Proof, bench: Bench) -> None:
    print(f"\n{proof.trial.case.label}: {proof.hit} rows hit, {proof.mended} can be mended")
    for name, buffer in proof.buffers.items():
        like = bench.original(buffer.rows)
        if like.rows < bench.rows:
            print(line("original, of that many", like))
        print(line(name, buffer, verdict(name, buffer, proof)), flush=True)


def plain(proof: Proof) -> dict[str, Any]:
    """A proof as JSON has it."""
    return {
        "fault": proof.trial.case.label,
        "rows_hit": proof.hit,
        "rows_mended": proof.mended,
        "too_weak_because": proof.trial.quiet,
        "holds": proof.holds,
        "buffers": {
            name: {
                "rows": buffer.rows,
                "ratio_error": buffer.ratio_error,
                "off": {measure: buffer.off(measure) for measure in MEASURES},
                "updates": [update._asdict() for update in buffer.updates],
                "original": [update._asdict() for update in buffer.original],
            }
            for name, buffer in proof.buffers.items()
        },
    }


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    numbered = list(enumerate(TRIALS, given.seed))  # each draws its own rows
    wanted = [(i, trial) for i, trial in numbered if not given.fault or trial.case.fault in given.fault]
    proofs = []
    with tempfile.TemporaryDirectory(prefix="bufcheck-training-") as name:
        folder = Path(name)
        bench = Bench(ppo.last_rollout(folder, STEPS), given.seeds)
        print("Mean ± standard deviation of first updates; off: in standard deviations of the original")
        print(HEAD)
        print(line("original", bench.original()), flush=True)
        for number, trial in wanted:
            proofs.append(bench.prove(trial, folder / str(number), number))
            tell(proofs[-1], bench)
    failed = [proof.trial.case.label for proof in proofs if not proof.holds]
    weak = sum(proof.trial.quiet is not None for proof in proofs)
    print(
        f"\n{len(proofs)} faults, {weak} of them too weak to show; {len(failed)} without proof", *failed
    )
    if given.json:
        told = {
            "held": not failed,
            "seeds": given.seeds,
            "seed": given.seed,
            "versions": ppo.versions(),
        }
        told["results"] = [plain(proof) for proof in proofs]
        given.json.write_text(json.dumps(told, indent=1) + "\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [trial.case.fault for trial in TRIALS]
    parser.add_argument(
        "--fault",
        nargs="+",
        choices=names,
        metavar="NAME",
        help=f"of {', '.join(names)}; all by default",
    )
    parser.add_argument(
        "--seeds", type=int, default=6, choices=range(2, 101), metavar="N", help="2 to 100"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the rows that a fault hits")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
