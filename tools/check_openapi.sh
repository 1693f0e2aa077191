#!/bin/sh
# schemathesis (PyPI; 4.32.5 was used) against a running `fidelio serve`, by the document that it serves: no 5xx, no
# status, type or body that the document does not name. The model is small and answers are long by default, hence
# max_tokens.
#   pip install schemathesis && tools/check_openapi.sh http://127.0.0.1:8000 [examples of each route]
set -eu
exec schemathesis run "$1/openapi.json" --max-examples "${2:-100}" --request-timeout 60 --generation-database none \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
