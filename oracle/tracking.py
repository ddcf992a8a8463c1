"""Do W&B and MLflow read what a run gives them: tracking.py BINARY OUT

Starts MLflow's tracking server as a process, trains a tiny model with all sinks on, and compares what each has with the run's log.
Needs `mlflow` (3.17 was tried) and `wandb` 0.21.4 (PyPI), which nothing else here does; later versions of `wandb` have no reader of these files in Python.
"""
import glob
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request


def port():
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return at.getsockname()[1]


def server(folder):
    address = f"http://127.0.0.1:{port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", address.rsplit(":", 1)[1], "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/artifacts"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Its first start takes minutes on a busy machine.
    for _ in range(1200):
        try:
            urllib.request.urlopen(address + "/health", timeout=1)
            return process, address
        except OSError:
            time.sleep(0.5)
    process.kill()
    raise SystemExit("MLflow's server does not answer")


def trained(binary, out, address, steps):
    text = os.path.join(out, "text")
    os.makedirs(text, exist_ok=True)
    for at in range(8):
        with open(f"{text}/{at}.txt", "w") as file:
            file.write(" ".join(f"word{(at * 7 + i * i) % 97}" for i in range(4000)))
    sizes = "model.hidden=64 model.layers=1 model.heads=2 model.kv_heads=1 model.ffn=128 model.vocab=384"
    keys = f"stage.0.seq_tokens=64 stage.0.samples_per_micro_batch=2 stage.0.steps={steps} eval.enabled=false machine.kind=cpu"
    sinks = f"run.wandb=true run.trackio=true run.tensorboard=true run.mlflow={address}"
    command = [binary, "train", "ladder", "--out", f"{out}/run", f"data.paths={text}", *sizes.split(), *keys.split(), *sinks.split()]
    subprocess.run(command, check=True)
    events = [json.loads(line) for line in open(f"{out}/run/metrics.jsonl")]
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def wandb_losses(out):
    from wandb.proto import wandb_internal_pb2 as pb
    from wandb.sdk.internal.datastore import DataStore

    losses, kinds = {}, []
    for path in sorted(glob.glob(f"{out}/run/wandb/offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(path)
        while (data := store.scan_data()) is not None:
            record = pb.Record()
            record.ParseFromString(data)
            kinds.append(record.WhichOneof("record_type"))
            if kinds[-1] == "history":
                row = {item.key: json.loads(item.value_json) for item in record.history.item}
                losses[row["_step"]] = row["train/loss"]
    assert kinds[0] == "header" and kinds[1] == "run" and kinds[-1] == "exit", kinds
    return losses


def mlflow_losses(address):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("fathom")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1, "a resumed run goes on with its run"
    assert runs[0].info.status == "FINISHED" and runs[0].data.params["model.hidden"] == "64"
    return {metric.step: metric.value for metric in client.get_metric_history(runs[0].info.run_id, "train/loss")}


def same(name, ours, theirs):
    assert ours.keys() == theirs.keys() and all(abs(ours[at] - theirs[at]) <= 1e-6 * abs(ours[at]) for at in ours), name
    print(f"{name}: {len(theirs)} steps, the same losses")


def main():
    binary, out = sys.argv[1:3]
    os.makedirs(out, exist_ok=True)
    process, address = server(out)
    try:
        trained(binary, out, address, 4)
        losses = trained(binary, out, address, 6)
        same("W&B", losses, wandb_losses(out))
        same("MLflow", losses, mlflow_losses(address))
        rows = [json.loads(line) for line in open(f"{out}/run/trackio.jsonl")]
        same("JSON lines", losses, {row["step"]: row["train/loss"] for row in rows})
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
