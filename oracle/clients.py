"""Real clients against a running server, and lm-evaluation-harness through it and through Transformers.

    fathom serve DIR --name m --port 8123 &
    python oracle/clients.py http://127.0.0.1:8123 DIR

DIR is a Hugging Face folder with a chat template, served in f32 so that Transformers' figures can be compared. Ends with an
error at the first thing that is not as the client expects. Needs `openai anthropic tritonclient[http] prometheus_client
lm_eval` besides requirements.txt.
"""
import json
import sys
import tempfile
from pathlib import Path

import anthropic
import numpy
import openai
import tritonclient.http as triton
from prometheus_client.parser import text_string_to_metric_families
from urllib.request import urlopen

QUESTION = [{"role": "user", "content": "hello"}]


def with_openai(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["m"]
    whole = client.chat.completions.create(model="m", messages=QUESTION, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    assert choice.finish_reason in ("length", "stop") and whole.usage.completion_tokens <= 8
    assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content)
    stream = client.chat.completions.create(model="m", messages=QUESTION, max_tokens=8, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    parts = list(stream)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == choice.message.content, (text, choice.message.content)
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    completion = client.completions.create(model="m", prompt=["a b", "c"], max_tokens=4, temperature=0, logprobs=2, n=2)
    assert len(completion.choices) == 4
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"], "additionalProperties": False}
    told = client.chat.completions.create(model="m", messages=QUESTION, max_tokens=200, temperature=0,
                                          response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}})
    if told.choices[0].finish_reason == "stop":
        assert 0 <= json.loads(told.choices[0].message.content)["a"] <= 9
    embedded = client.embeddings.create(model="m", input=["a", "b c"])
    assert len(embedded.data) == 2 and len(embedded.data[0].embedding) > 0
    for bad, kind in (({"model": "nobody"}, openai.NotFoundError), ({"max_tokens": -1}, openai.BadRequestError)):
        try:
            client.chat.completions.create(**{"model": "m", "messages": QUESTION, **bad})
            raise SystemExit(f"{bad} was answered")
        except kind as error:
            assert error.body["message"]
    print("openai", openai.__version__)


def with_anthropic(url):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    whole = client.messages.create(model="m", max_tokens=8, messages=QUESTION, extra_body={"temperature": 0})
    assert whole.role == "assistant" and whole.stop_reason in ("max_tokens", "end_turn") and whole.usage.output_tokens <= 8
    with client.messages.stream(model="m", max_tokens=8, messages=QUESTION, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().content[0].text == text == whole.content[0].text
    assert client.messages.count_tokens(model="m", messages=QUESTION).input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    try:
        client.messages.create(model="nobody", max_tokens=8, messages=QUESTION)
        raise SystemExit("a model that is not there answered")
    except anthropic.NotFoundError:
        pass
    print("anthropic", anthropic.__version__)


def with_triton(url):
    client = triton.InferenceServerClient(url.split("//")[1])
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
    shape = client.get_model_metadata("m")
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(numpy.array(["a b"], dtype=object), binary_data=False)
    asked = [triton.InferRequestedOutput("text_output", binary_data=False)]
    result = client.infer("m", [text], outputs=asked, parameters={"max_tokens": 4})
    assert result.as_numpy("text_output").shape[0] == 1, shape
    # The client's own way: binary tensors, both directions.
    text.set_data_from_numpy(numpy.array(["a b"], dtype=object))
    tokens = triton.InferInput("max_tokens", [1], "INT32")
    tokens.set_data_from_numpy(numpy.array([4], dtype=numpy.int32))
    for asked in (None, [triton.InferRequestedOutput("text_output")]):
        binary = client.infer("m", [text, tokens], outputs=asked, parameters={"temperature": 0})
        assert len(binary.as_numpy("text_output")) == 1 and isinstance(binary.as_numpy("text_output")[0], bytes)
    print("tritonclient")


def with_prometheus(url):
    text = urlopen(url + "/metrics").read().decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "vllm:time_to_first_token_seconds" in names, names
    print("prometheus_client", len(names), "families")


def with_harness(url, folder):
    import lm_eval
    from lm_eval.tasks import TaskManager

    work = Path(tempfile.mkdtemp())
    rows = [{"q": f"The number {a} and the number {b}", "choices": [" are words", " are", f" {a}", " x y z"], "gold": a % 4}
            for a in range(3) for b in range(4)]
    (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "local.yaml").write_text(f"""
task: local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {work}/rows.jsonl}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{q}}}}"
doc_to_target: gold
doc_to_choice: choices
""")
    manager = TaskManager(include_path=str(work), include_defaults=False)

    def items(model, arguments):
        found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=["local"], task_manager=manager, log_samples=True, batch_size=1)
        samples = sorted(found["samples"]["local"], key=lambda sample: sample["doc_id"])
        return [[float(answer[0]) for answer in sample["filtered_resps"]] for sample in samples]

    theirs = items("hf", f"pretrained={folder},dtype=float32,device=cpu")
    ours = items("local-completions", f"model=m,base_url={url}/v1/completions,tokenizer={folder},tokenizer_backend=huggingface,num_concurrent=1,max_length=250")
    most = max(abs(a - b) for x, y in zip(ours, theirs) for a, b in zip(x, y))
    assert most <= 1e-4, most
    print(f"lm_eval {lm_eval.__version__}: {len(ours)} items, log-likelihoods within {most:.1e}")


def main():
    url, folder = sys.argv[1:3]
    with_openai(url)
    with_anthropic(url)
    with_triton(url)
    with_prometheus(url)
    with_harness(url, folder)


main()
