#!/usr/bin/env bash
# start_own.sh [POLICY]: this gateway for the peer lab. Copy it beside the lab's other start scripts.
# GATEWAY_BIN: the release binary. ACCESS_LOG=stdout turns the access log on; the peers run without theirs.
. "$(dirname "$0")/lib.sh"; engines_if_none
c=$RUN/gateway.yaml
{
  echo "server: { listen: 127.0.0.1:$PORT, admin_listen: 127.0.0.1:$((PORT+50)), access_log: ${ACCESS_LOG:-off} }"
  echo "models:"
  echo "  - name: $MODEL"
  echo "    routing: { policy: ${1:-prefix} }"
  echo "    replicas: [ $(for p in $ENGINES; do printf '{ url: http://127.0.0.1:%s }, ' "$p"; done) ]"
} >"$c"
GATEWAY_LOG=warn exec "${GATEWAY_BIN:?set GATEWAY_BIN to the release binary}" serve --config "$c"
