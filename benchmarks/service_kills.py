"""Kill a service while it learns, restart it, and check that every learn request is in the file.

    python benchmarks/service_kills.py [--rounds 50] [--quick]

Clients send learn requests, each with an idempotency key, and repeat them until they are
acknowledged. The service is killed (SIGKILL) at random moments. Each time, before the restart, the
file must be valid and contain every acknowledged request, none twice, and exactly the samples of
these requests. At the end every request was acknowledged once and is in the file once.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import fecam
from fecam.client import Client
from fecam.model_file.integrity import check
from reporting import markdown, options, say, write
from serving import Served, service
from stamps import SERVICE

WIDTH, CLIENTS, CLASSES = 64, 3, 4
"""Features; clients; classes per client."""


def learn_request(client: int, number: int) -> tuple[str, str, np.ndarray]:
    """Return the key, the label and the samples of a learn request."""
    rng = np.random.default_rng([client, number])
    rows = rng.gamma(2.0, size=(int(rng.integers(1, 20)), WIDTH)).astype(np.float32)
    return f"{client}-{number}", f"class {client}.{number % CLASSES}", rows


def expected(keys: set[str]) -> dict[str, int]:
    """Return the number of samples per class of these requests."""
    counts: Counter[str] = Counter()
    for key in keys:
        _, label, rows = learn_request(*map(int, key.split("-")))
        counts[label] += len(rows)
    return dict(counts)


class LearningClient(threading.Thread):
    """Sends learn requests and records those that were acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.url, self.number = url, number
        self.acknowledged: set[str] = set()
        self.ending, self.error = threading.Event(), ""

    def run(self) -> None:
        """Send requests until `ending` is set; the current one is finished."""
        i = 0
        try:
            with Client(self.url, timeout=20, retry_timeout=120) as client:
                while not self.ending.is_set():
                    key, label, rows = learn_request(self.number, i)
                    done = client.learn(rows, label, idempotency_key=key)
                    if sum(done.n_learned.values()) != len(rows):
                        self.error = f"request {key} of {len(rows)} samples: {done}"
                        return
                    self.acknowledged.add(key)
                    i += 1
        except Exception as error:
            self.error = f"request {self.number}-{i}: {error}"


def examine(path: Path, clients: list[LearningClient]) -> tuple[int, str | None]:
    """Return the number of unacknowledged requests on the disk, and what is wrong with the file."""
    for problem in check(path):
        return 0, problem
    with fecam.open(path, readonly=True) as model:
        keys = [step.idempotency_key for step in model.steps if step.idempotency_key]
        counts = {str(row.label): row.count for row in model.classes if row.label != "first"}
    acknowledged = set[str]().union(*(client.acknowledged for client in clients))
    stored = set(keys)
    if len(keys) != len(stored):
        return 0, f"requests learned twice: {[k for k, n in Counter(keys).items() if n > 1]}"
    if acknowledged - stored:
        return 0, f"acknowledged, but lost: {sorted(acknowledged - stored)}"
    if counts != expected(stored):
        return 0, f"{counts} samples, but the requests have {expected(stored)}"
    return len(stored - acknowledged), None


def wait_for_requests(clients: list[LearningClient]) -> None:
    """Wait until one more is acknowledged: clients pause between two attempts."""
    before = sum(len(client.acknowledged) for client in clients)
    while sum(len(client.acknowledged) for client in clients) == before:
        if any(client.error for client in clients):
            return
        time.sleep(0.005)


def kill_once(running: Served, clients: list[LearningClient], path: Path) -> tuple[int, str | None]:
    """Kill the service, check the file, start it again."""
    running.kill()
    result = examine(path, clients)
    running.start()
    return result


def main() -> int:
    """Kill, check, count."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rounds = 3 if args.quick else args.rounds
    folder, chance = Path(tempfile.mkdtemp()), random.Random(args.seed)
    path = folder / "model.fecam"
    with fecam.open(path) as model:  # so that it takes features
        model.learn(np.ones((2, WIDTH), np.float32), ["first", "first"])
    problems, ahead, start = list[str](), 0, time.monotonic()
    with service(path) as running:
        clients = [LearningClient(running.url, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for number in range(1, rounds + 1):
            wait_for_requests(clients)
            time.sleep(chance.uniform(0, 0.5))
            more, problem = kill_once(running, clients, path)
            ahead += more
            problems += [f"kill {number}: {problem}"] if problem else []
            problems += [client.error for client in clients if client.error]
            if problems:
                break  # later rounds would only repeat it
            if number % 10 == 0 or number == rounds:
                requests = sum(len(client.acknowledged) for client in clients)
                left = (time.monotonic() - start) / number * (rounds - number)
                say(f"{number}/{rounds} kills, {requests} requests, no problem; {left:.0f} s left")
        for client in clients:
            client.ending.set()
        for client in clients:
            client.join()
    more, problem = examine(path, clients)
    problems += [problem] if problem else []
    problems += [f"{more} requests that were never acknowledged"] if more else []
    for problem in problems:
        say(f"{problem} ({path} is kept)")
    if not problems:
        shutil.rmtree(folder)
    requests = sum(len(client.acknowledged) for client in clients)
    header = [
        "kills",
        "learn requests acknowledged",
        "on the disk, not yet acknowledged",
        "lost, twice or in part",
    ]
    table = markdown(header, [[str(rounds), f"{requests:,}", str(ahead), str(len(problems))]])
    print(table)
    results = {"rounds": rounds, "lessons": requests, "ahead": ahead, "problems": problems}
    write("service_kills", table, results, quick=args.quick, measures=SERVICE)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
