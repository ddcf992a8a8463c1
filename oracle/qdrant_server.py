"""Qdrant's REST interface over its own Python client: `python oracle/qdrant_server.py` prints a port and serves until
its input ends.

Requests are read by the models that the client generates from Qdrant's published OpenAPI description (unknown keys are
refused there) and answered by the client's local mode, which computes in NumPy. It is not the server: it checks that
requests have the published form, and what filters and scores mean. Needs `pip install qdrant-client==1.20.0`.
"""

import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models
from qdrant_client.http import models as rest

client = QdrantClient(":memory:")
lock = threading.Lock()
KEY = os.environ.get("QDRANT_KEY", "")


def read(model, body):
    """A body as a model of the description."""
    return TypeAdapter(model).validate_python(body)


def answer(method, name, path, body):
    there = client.collection_exists(name)
    if method == "PUT" and path == "":
        asked = read(rest.CreateCollection, body)
        return client.create_collection(name, vectors_config=asked.vectors)
    if not there:
        return None
    if method == "GET" and path == "":
        return json.loads(client.get_collection(name).model_dump_json())
    if method == "PUT" and path == "/index":
        asked = read(rest.CreateFieldIndex, body)
        return client.create_payload_index(name, asked.field_name, asked.field_schema).model_dump(mode="json")
    if method == "PUT" and path == "/points":
        asked = read(rest.PointsList, body)
        return client.upsert(name, asked.points).model_dump(mode="json")
    if path == "/points/delete":
        asked = read(rest.FilterSelector, body)
        return client.delete(name, models.FilterSelector(filter=asked.filter)).model_dump(mode="json")
    if path == "/points/count":
        asked = read(rest.CountRequest, body)
        return {"count": client.count(name, count_filter=asked.filter, exact=asked.exact).count}
    if path == "/facet":
        asked = read(rest.FacetRequest, body)
        found = client.facet(name, asked.key, limit=asked.limit, exact=asked.exact)
        return {"hits": [{"value": hit.value, "count": hit.count} for hit in found.hits]}
    if path == "/points/query":
        asked = read(rest.QueryRequest, body)
        found = client.query_points(
            name,
            query=asked.query,
            query_filter=asked.filter,
            limit=asked.limit,
            search_params=asked.params,
            with_payload=asked.with_payload,
        )
        return {"points": [{"id": p.id, "version": 0, "score": p.score, "payload": p.payload} for p in found.points]}
    raise ValueError(f"unknown request {method} {path}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        found = re.fullmatch(r"/collections/([^/?]+)([^?]*)(\?wait=true)?", self.path)
        try:
            with lock:
                result = answer(self.command, found[1], found[2], json.loads(body or b"null"))
            status, said = (200, {"result": result}) if result is not None else (404, {"status": {"error": "Not found"}})
        except Exception as error:  # every fault is an answer
            print(error, file=sys.stderr)
            status, said = 400, {"status": {"error": str(error)}}
        if KEY and self.headers.get("api-key") != KEY:
            status, said = 401, {}
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = handle_one

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
