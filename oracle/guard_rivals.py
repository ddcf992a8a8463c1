"""Rails next to NeMo Guardrails 0.24.1 and Presidio 2.2.363, in one run on the same generated texts.

    python oracle/guard_rivals.py FATHOM nemo  PYTHON_WITH_NEMOGUARDRAILS
    python oracle/guard_rivals.py FATHOM presidio PYTHON_WITH_PRESIDIO
    python oracle/guard_rivals.py FATHOM cases    FOLDER_OF_PRESIDIOS_TESTS
    python oracle/guard_rivals.py FATHOM load
    python oracle/guard_rivals.py FATHOM sizes
    python oracle/guard_rivals.py FATHOM stream MODEL

`nemo`: verdicts of regex and injection rails of both on each text, and the differences. `presidio`: spans of mail
addresses, cards, accounts, addresses of the net, telephone and social security numbers that were put into texts, found
by either: precision and recall by kind, and bytes a second. `cases`: the literal cases of Presidio's own tests of its
recognisers (a checkout of its repository), each kind alone and `without_context`, as its tests ask a recogniser: cases with
the same spans, and the others. `load`: requests a second of `/v1/checks` by 16 clients over
2 KB with rails `regex`, `personal_data` and `injection`, quantiles of one client's waits, and the server's peak memory.
`sizes`: the same rails' own time over texts of 2 KB to 1 MiB, and that of 10 and of 10,000 literals over one text. `stream`:
time a token and until the first piece of a streamed answer of a small model, with those rails on the answer and without.

The other programs run as processes of their own interpreters; this script needs the standard library alone.
"""

import ast
import http.client
import itertools
import json
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WORDS = "the river carries old stones under a bridge and nobody counts every light of blue day while we import salt".split()
ATTACKS = [
    "'; DROP TABLE users; --", "1' UNION SELECT name, password FROM users--", "import os; os.system('id')", "{{ 7*7 }}",
    "<script>alert(1)</script>", "' OR '1'='1' --", "from subprocess import run", "{{config.items()}}",
    "SELECT * FROM users; DROP TABLE users;", "__import__('os').system('ls')",
]


def luhn(digits):
    doubled = [int(d) if at % 2 else sum(divmod(2 * int(d), 10)) for at, d in enumerate(reversed(digits))]
    return str(-sum(doubled) % 10)


def values(rng):
    """A value of each kind, with check digits where the kind has them."""
    card = "4" + "".join(rng.choice("0123456789") for _ in range(14))
    card += luhn(card)
    account = "".join(rng.choice("0123456789") for _ in range(18))
    number = int(account + "131400") % 97
    iban = f"DE{98 - number:02d}{account}"
    return {
        "email": f"{rng.choice(WORDS)}.{rng.choice(WORDS)}@example.{rng.choice(['org', 'com', 'de'])}",
        "card": rng.choice([card, " ".join(card[at:at + 4] for at in range(0, 16, 4))]),
        "iban": rng.choice([iban, " ".join(iban[at:at + 4] for at in range(0, 22, 4))]),
        "ip": ".".join(str(rng.randint(1, 254)) for _ in range(4)),
        "phone": f"({rng.randint(201, 989)}) 555-{rng.randint(1000, 9999)}",
        "ssn": f"{rng.randint(100, 665)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}",
    }


def texts(count, seed):
    """Texts with the spans of what was put into them, and numbers that are nothing."""
    rng, all_texts = random.Random(seed), []
    for _ in range(count):
        text, spans = "", []
        for _ in range(rng.randint(5, 40)):
            roll = rng.random()
            if roll < 0.12:
                kind, value = rng.choice(list(values(rng).items()))
                lead = {"ssn": "my SSN is ", "phone": "call ", "ip": "the server "}.get(kind, "")
                spans.append([len(text) + len(lead), len(text) + len(lead) + len(value), kind])
                text += lead + value
            elif roll < 0.2:
                text += rng.choice([str(rng.randint(1, 99999)), f"{rng.randint(1900, 2030)}-{rng.randint(10, 12)}-{rng.randint(10, 28)}", f"{rng.random():.4f}"])
            else:
                text += rng.choice(WORDS)
            text += rng.choice([" ", " ", ", ", ". "])
        all_texts.append({"text": text, "spans": spans})
    return all_texts


def started(args):
    """A server as a process, and its address."""
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while line := process.stdout.readline():
        if found := re.search(r"(\d+\.\d+\.\d+\.\d+:\d+)", line):
            return process, found.group(1)
    raise SystemExit("the server did not start")


class Server:
    """`fathom guard serve` with a configuration, or `fathom serve` of a model with one or without."""

    def __init__(self, fathom, rails, model=None):
        self.folder = tempfile.TemporaryDirectory()
        if rails:
            (pathlib.Path(self.folder.name) / "guard.toml").write_text(rails)
        args = [fathom, "guard", "serve", "--config", self.folder.name, "--port", "0"]
        if model:
            args = [fathom, "serve", model, "--port", "0", *(["--guard", self.folder.name] if rails else [])]
        self.process, self.host = started(args)

    def connect(self):
        return http.client.HTTPConnection(self.host)

    def check(self, connection, text):
        body = json.dumps({"messages": [{"role": "user", "content": text}]})
        connection.request("POST", "/v1/checks", body, {"content-type": "application/json"})
        return json.loads(connection.getresponse().read())

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


THREE = (
    '[[rail]]\nuse = "regex"\non = ["SIDE"]\naction = "flag"\npatterns = ["(?i)\\\\bforbidden\\\\b", "\\\\d{9,12}"]\n'
    '[[rail]]\nuse = "personal_data"\non = ["SIDE"]\naction = "flag"\nkinds = ["email", "card", "phone"]\n'
    '[[rail]]\nuse = "injection"\non = ["SIDE"]\naction = "flag"\n'
)

REGEX = ["(?i)\\bstones? under\\b", "\\d{5}", "nobody counts (?:every|each)"]

NEMO = """
import asyncio, json, sys, time
from nemoguardrails.library.injection_detection.actions import injection_detection
from nemoguardrails.library.regex.actions import detect_regex_pattern
from nemoguardrails.rails.llm.config import RailsConfig
job = json.load(sys.stdin)
yaml = "models: []\\nrails:\\n  config:\\n    regex_detection:\\n      input:\\n        patterns: " + json.dumps(job["patterns"])
yaml += "\\n    injection_detection:\\n      injections: [code, sqli, template, xss]\\n      action: reject\\n"
config = RailsConfig.from_content(yaml_content=yaml)

async def run():
    began, regex, injected = time.perf_counter(), [], []
    for text in job["texts"]:
        regex.append((await detect_regex_pattern(source="input", text=text, config=config)).metadata["is_match"])
    took = time.perf_counter() - began
    for text in job["texts"]:
        injected.append((await injection_detection(text=text, config=config)).metadata["is_injection"])
    return {"regex": regex, "took_s": took, "injection": injected, "all_s": time.perf_counter() - began}

json.dump(asyncio.run(run()), sys.stdout)
"""

PRESIDIO = """
import json, sys, time
from presidio_analyzer import predefined_recognizers as all_of
job = json.load(sys.stdin)
kinds = {"email": "EmailRecognizer", "card": "CreditCardRecognizer", "iban": "IbanRecognizer", "ip": "IpRecognizer",
         "phone": "PhoneRecognizer", "ssn": "UsSsnRecognizer"}
made = {kind: getattr(all_of, name)() for kind, name in kinds.items()}
out, began = [], time.perf_counter()
for text in job["texts"]:
    found = []
    for kind, recognizer in made.items():
        for one in recognizer.analyze(text, recognizer.supported_entities, None) or []:
            found.append([one.start, one.end, kind, one.score])
    out.append(found)
json.dump({"found": out, "took_s": time.perf_counter() - began}, sys.stdout)
"""


def other(python, program, job):
    done = subprocess.run([python, "-c", program], input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout[done.stdout.index("{"):])


def nemo(fathom, python):
    rng, cases = random.Random(3), []
    for at in range(400):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(5, 60)))
        cases.append(f"{text} {rng.choice(ATTACKS)}" if at % 4 == 0 else text)
    patterns = json.dumps(REGEX)
    rails = f'[[rail]]\nuse = "regex"\non = ["input"]\naction = "flag"\npatterns = {patterns}\n'
    rails += '[[rail]]\nuse = "injection"\non = ["input"]\naction = "flag"\n'
    server = Server(fathom, rails)
    connection = server.connect()
    ours = []
    for text in cases:
        verdicts = server.check(connection, text)["verdicts"]
        ours.append({verdict["rail"]: verdict["decision"] != "allow" for verdict in verdicts})
    server.stop()
    theirs = other(python, NEMO, {"texts": cases, "patterns": REGEX})
    different = [text for text, own, it in zip(cases, ours, theirs["regex"]) if own["regex"] != it]
    print(f"regex: {len(cases) - len(different)} of {len(cases)} verdicts are equal")
    for text in different[:5]:
        print("  ", text)
    attacks = [at % 4 == 0 for at in range(len(cases))]
    for name, found in (("fathom", [own["injection"] for own in ours]), ("0.24.1", theirs["injection"])):
        hits = sum(it and attack for it, attack in zip(found, attacks))
        false = sum(it and not attack for it, attack in zip(found, attacks))
        print(f"injection, {name}: {hits} of {sum(attacks)} attacks, {false} of {len(cases) - sum(attacks)} others")
    print(f"0.24.1 took {theirs['all_s'] / len(cases) * 1e6:.0f} us a text for both rails")


def presidio(fathom, python):
    cases = texts(1000, 5)
    size = sum(len(case["text"].encode()) for case in cases)
    rails = '[[rail]]\nuse = "personal_data"\non = ["input"]\naction = "flag"\n'
    rails += 'kinds = ["email", "card", "iban", "ip", "phone", "ssn"]\n'
    server = Server(fathom, rails)
    connection = server.connect()
    ours = []
    for case in cases:
        verdict = server.check(connection, case["text"])["verdicts"][0]
        ours.append(verdict["spans"])
    # One long message, so that the time is that of the rail.
    long = " ".join(case["text"] for case in cases)
    server.check(connection, long)
    verdict = server.check(connection, long)["verdicts"][0]
    speed = size / (verdict["took_us"] / 1e6)
    server.stop()
    theirs = other(python, PRESIDIO, {"texts": [case["text"] for case in cases]})
    threshold = 0.4
    rivals = [[it[:3] for it in found if it[3] >= threshold] for found in theirs["found"]]
    print(f"bytes a second: fathom {speed:,.0f}, Presidio's recognisers {size / theirs['took_s']:,.0f}")
    for kind in ("email", "card", "iban", "ip", "phone", "ssn"):
        line = f"{kind:6}"
        for name, found in (("fathom", ours), (f"Presidio, score {threshold}", rivals)):
            wanted = {(at, *span[:2]) for at, case in enumerate(cases) for span in case["spans"] if span[2] == kind}
            got = {(at, *span[:2]) for at, spans in enumerate(found) for span in spans if span[2] == kind}
            both = len(wanted & got)
            line += f"  {name}: recall {both / max(len(wanted), 1):.3f}, precision {both / max(len(got), 1):.3f};"
        print(line)


# Entities of Presidio that have another name here.
OTHER = {"CREDIT_CARD": "card", "EMAIL_ADDRESS": "email", "IBAN_CODE": "iban", "IP_ADDRESS": "ip", "PHONE_NUMBER": "phone",
         "US_SSN": "ssn", "DATE_TIME": "date", "MEDICAL_LICENSE": "us_medical_license", "ABA_ROUTING_NUMBER": "us_aba_routing"}


def literal_cases(file):
    """The texts with expected spans of a test file's tables, and the entity that it is about."""
    tree = ast.parse(file.read_text())
    entity = next((node.elts[0].value for node in ast.walk(tree) if isinstance(node, ast.List) and len(node.elts) == 1
                   and isinstance(node.elts[0], ast.Constant) and re.fullmatch("[A-Z][A-Z_]+", str(node.elts[0].value))), None)

    def spans(value, text):
        if isinstance(value, (tuple, list)):
            if len(value) == 2 and all(type(it) is int for it in value) and 0 <= value[0] < value[1] <= len(text):
                return [tuple(value)]
            return [span for it in value for span in spans(it, text)]
        return []

    found = []
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func).endswith("parametrize") and len(call.args) > 1):
            continue
        names = [it.strip() for it in str(getattr(call.args[0], "value", "")).split(",")]
        if not names or names[0] not in ("text", "txt"):
            continue
        for row in getattr(call.args[1], "elts", []):
            try:
                row = ast.literal_eval(row)
            except ValueError:
                continue
            if isinstance(row, tuple) and len(row) > 1 and isinstance(row[0], str) and type(row[1]) is int:
                rest = row[2:]
                own = spans(rest, row[0])
                if not own and len(rest) > 1 and all(type(it) is int for it in rest[:2]):
                    own = spans(tuple(rest[:2]), row[0])
                if len(own) == row[1]:
                    found.append((row[0], sorted(own)))
    return entity, found


def cases(fathom, folder):
    same, all_of = 0, 0
    for file in sorted(pathlib.Path(folder).glob("test_*_recognizer.py")):
        entity, rows = literal_cases(file)
        if not rows or entity is None:
            continue
        kind = OTHER.get(entity, entity.lower())
        rail = f'[[rail]]\nuse = "personal_data"\non = ["input"]\naction = "flag"\nkinds = ["{kind}"]\nwithout_context = true\n'
        try:
            server = Server(fathom, rail)
        except SystemExit:
            print(f"{entity}: is no kind here ({len(rows)} cases)")
            continue
        connection, equal = server.connect(), 0
        for text, wanted in rows:
            found = server.check(connection, text).get("verdicts", [{}])[0].get("spans", []) if text else []
            offsets = lambda at: len(text.encode()[:at].decode())
            got = sorted((offsets(it[0]), offsets(it[1])) for it in found)
            equal += got == wanted
            if got != wanted:
                print(f"  {kind}: {text!r}: Presidio {wanted}, here {got}")
        server.stop()
        print(f"{kind}: {equal} of {len(rows)}")
        same, all_of = same + equal, all_of + len(rows)
    print(f"all: {same} of {all_of} ({100 * same / max(all_of, 1):.1f} %)")


def load(fathom, _):
    server = Server(fathom, THREE.replace("SIDE", "input"))
    rng = random.Random(1)
    text = " ".join(rng.choice(WORDS) for _ in range(400))[:2048]
    verdicts = server.check(server.connect(), text)["verdicts"]
    rail_us = sum(verdict["took_us"] for verdict in verdicts)
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    request = b"POST /v1/checks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
    request += str(len(body)).encode() + b"\r\n\r\n" + body
    seconds, counts, slow = 5.0, [0] * 16, []
    host, port = server.host.split(":")

    def answers():
        """Sends the request again and again over one connection; yields each one's seconds."""
        line, held = socket.create_connection((host, int(port))), b""
        while True:
            began = time.perf_counter()
            line.sendall(request)
            while b"\r\n\r\n" not in held:
                held += line.recv(65536)
            head, _, rest = held.partition(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head.lower()).group(1))
            while len(rest) < length:
                rest += line.recv(65536)
            held = rest[length:]
            yield time.perf_counter() - began

    waits = sorted(itertools.islice(answers(), 2000))
    print(f"alone: p50 {1e3 * waits[1000]:.2f} ms, p99 {1e3 * waits[1980]:.2f} ms; rails {rail_us} us")

    def client(at):
        end = time.perf_counter() + seconds
        for took in answers():
            counts[at] += 1
            slow.append(took)
            if time.perf_counter() > end:
                break

    clients = [threading.Thread(target=client, args=(at,)) for at in range(16)]
    before = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().split()
    [it.start() for it in clients]
    [it.join() for it in clients]
    after = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().split()
    used = sum(int(b) - int(a) for a, b in zip(before[13:15], after[13:15])) / 100
    slow.sort()
    print(f"16 clients of this process: {sum(counts) / seconds:,.0f} requests/s, p99 {1e3 * slow[len(slow) * 99 // 100]:.1f} ms")
    print(f"the server's processor time per request: {1e6 * used / sum(counts):.0f} us, so {sum(counts) / used:,.0f} requests/s a core")
    print(f"peak memory: {server.peak_mib():.0f} MiB")
    server.stop()


def sizes(fathom, _):
    server, rng = Server(fathom, THREE.replace("SIDE", "input")), random.Random(2)
    connection = server.connect()
    words = " ".join(rng.choice(WORDS) for _ in range(1 << 18))
    for size in (2 << 10, 32 << 10, 256 << 10, 1 << 20):
        runs = []
        for _ in range(max(5, (8 << 20) // size if size > 4096 else 200)):
            runs.append(sum(verdict["took_us"] for verdict in server.check(connection, words[:size])["verdicts"]))
        took = statistics.median(runs)
        print(f"{size >> 10:5} KiB: {took:9,.0f} us, {1e3 * took / size:.2f} ns a byte")
    server.stop()
    alphabet = "bcdfghjklmnpqrtvwxyz"
    for count in (10, 10_000):
        literals = {"".join(rng.choice(alphabet) for _ in range(8)) for _ in range(count)}
        server = Server(fathom, f'[[rail]]\nuse = "regex"\non = ["input"]\naction = "flag"\nwords = {json.dumps(sorted(literals))}\n')
        connection = server.connect()
        runs = [server.check(connection, words[:64 << 10])["verdicts"][0]["took_us"] for _ in range(60)]
        print(f"{count:6} literals over 64 KiB: {statistics.median(runs):,.0f} us")
        server.stop()


def stream(fathom, model):
    asked = {"prompt": "The river", "max_tokens": 512, "ignore_eos": True, "temperature": 1.0, "seed": 1, "stream": True}
    servers = {"without rails": Server(fathom, None, model), "with rails": Server(fathom, THREE.replace("SIDE", "output"), model)}
    times = {name: [] for name in servers}
    for _ in range(15):
        for name, server in servers.items():
            connection, began, first = server.connect(), time.perf_counter(), None
            connection.request("POST", "/v1/completions", json.dumps(asked), {"content-type": "application/json"})
            answer = connection.getresponse()
            while line := answer.readline():
                if line.startswith(b"data:") and b'"text":""' not in line and first is None:
                    first = time.perf_counter() - began
            times[name].append((first, time.perf_counter() - began))
    token_us = {}
    for name, runs in times.items():
        first, whole = (statistics.median(run[at] for run in runs) for at in (0, 1))
        token_us[name] = 1e6 * whole / 512
        print(f"{name}: first piece after {1e3 * first:.1f} ms, {token_us[name]:.1f} us a token of 512")
    print(f"added: {token_us['with rails'] - token_us['without rails']:.1f} us a token")
    [server.stop() for server in servers.values()]


if __name__ == "__main__":
    {"nemo": nemo, "presidio": presidio, "cases": cases, "load": load, "sizes": sizes, "stream": stream}[sys.argv[2]](sys.argv[1], (sys.argv[3:] or [None])[0])
