#!/bin/sh
# schemathesis (PyPI; 4.32.5 was used) against a running `fidelio serve`, by the document that it serves: no 5xx, no
# status, type or body that the document does not name. First by the document as it is, most of whose requests name a
# model that is not served or ask for what is refused; then by the same document narrowed to what is answered (the
# server's model, roles that templates know, few and short answers), so that what stands behind the refusals is reached.
# A model with a chat template reaches more.
#   pip install schemathesis && tools/check_openapi.sh http://127.0.0.1:8000 [examples of each route]
set -eu
narrowed=$(mktemp --suffix=.json)
trap 'rm -f "$narrowed"' EXIT
python3 - "$1" >"$narrowed" <<'END'
import json, sys, urllib.request

def get(path):
    return json.load(urllib.request.urlopen(sys.argv[1] + path))

document, model = get("/openapi.json"), get("/v1/models")["data"][0]["id"]

def walk(value):
    if isinstance(value, list):
        for one in value:
            walk(one)
    if not isinstance(value, dict):
        return
    for key, one in value.get("properties", {}).items():
        if key == "model" and one.get("type") == ["string", "null"]:
            value["properties"][key] = {"enum": [model, None]}
        elif key == "role" and one == {"type": "string"}:
            value["properties"][key] = {"enum": ["system", "user", "assistant"]}
        elif key in ("n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens"):
            one["maximum"] = 4 if key in ("n", "best_of") else 40
    for one in value.values():
        walk(one)

walk(document["components"]["schemas"])
json.dump(document, sys.stdout)
END
for document in "$1/openapi.json" "$narrowed"; do
  schemathesis run "$document" --url "$1" --max-examples "${2:-100}" --request-timeout 300 --generation-database none \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
done
