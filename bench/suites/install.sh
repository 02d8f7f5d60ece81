#!/usr/bin/env bash
# install.sh DIST MODEL [SUITE...]: installs what `cargo xtask dist` made in bare Debian roots (default: bookworm) without Rust or a
# compiler, and uses it: version, doctor, an answer of MODEL (a file, or a name that is fetched), the service's unit, a server killed
# and started again. Root, mmdebstrap and a mirror of Debian are needed (ROOTS: a folder of SUITE.tar made before). No output is recorded yet: it goes to install.txt.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,4p "$0" | cut -c3-; exit 2; }
dist=$(realpath "$1")
model=$2
shift 2
suites=("${@:-bookworm}")
work=$(mktemp -d)
trap 'umount "$work"/*/proc "$work"/*/dev 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

say() { printf '%-10s %-10s %s\n' "$suite" "$how" "$*"; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", b - a }'; }

# bare: the base of a suite, made once; then a copy of it for each way to install.
bare() {
  if [ -f "${ROOTS:-/nowhere}/$suite.tar" ] && [ ! -d "$work/$suite" ]; then
    mkdir "$work/$suite"
    tar -xf "$ROOTS/$suite.tar" -C "$work/$suite"
  elif [ ! -d "$work/$suite" ]; then
    mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3-venv,systemd,curl,util-linux "$suite" "$work/$suite" >/dev/null
  fi
  root=$work/root
  umount "$root/proc" "$root/dev" 2>/dev/null || true
  rm -rf --one-file-system "$root"
  cp -a "$work/$suite" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  mkdir -p "$root/dist"
  cp "$dist"/* "$root/dist/"
  asked=$model
  if [ -f "$model" ]; then cp "$model" "$root/model.gguf" && asked=/model.gguf; fi
}
inside() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$@"; }

# answers PROGRAM: it says what it is, finds nothing wrong, and answers.
answers() {
  local begun output
  say "$(inside "$1" --version | head -1), doctor: $(inside "$1" doctor | grep -c .) lines"
  begun=$(now)
  output=$(inside "$1" run "$asked" "Why is the sky blue?" -n 20 2>"$work/err" </dev/null) || { say "NO ANSWER: $(tail -1 "$work/err")"; return 1; }
  say "answered in $(since "$begun") ($(grep -o 'first token after [0-9.]* s' "$work/err" || true)): $(echo "$output" | head -1 | cut -c1-60)"
}

archive() {
  how=archive; bare
  local begun; begun=$(now)
  inside tar -xzf /dist/tokenmill-*-x86_64-linux.tar.gz -C /opt --strip-components=1
  say "installed in $(since "$begun")"
  answers /opt/bin/tokenmill
}

wheel() {
  how=wheel; bare
  local begun; begun=$(now)
  inside python3 -m venv /venv
  inside sh -c '/venv/bin/pip install --quiet --no-index --disable-pip-version-check /dist/tokenmill_cli-*.whl'
  say "installed in $(since "$begun")"
  answers /venv/bin/tokenmill
}

deb() {
  how=deb; bare
  local begun; begun=$(now)
  inside sh -c 'dpkg -i /dist/tokenmill_*_amd64.deb >/dev/null'
  say "installed in $(since "$begun"); user: $(inside id tokenmill)"
  answers tokenmill
  inside systemd-analyze verify /usr/lib/systemd/system/tokenmill.service 2>&1 | grep -i tokenmill | sed 's/^/    /' || true
  say "systemd-analyze verify: done; security $(inside systemd-analyze security --offline=true /usr/lib/systemd/system/tokenmill.service 2>/dev/null | tail -1 | grep -o '[0-9.]* [A-Z]*' | head -1)"
  service
  inside dpkg --purge tokenmill >/dev/null 2>&1
  inside sh -c 'test ! -e /usr/bin/tokenmill && test ! -e /var/lib/tokenmill' && say "purged: nothing left"
}

# service: as the unit starts it, killed, started again, drained.
service() {
  local settings=(HOME=/var/lib/tokenmill XDG_DATA_HOME=/var/lib/tokenmill XDG_CONFIG_HOME=/var/lib/tokenmill)
  inside install -d -o tokenmill -g tokenmill -m 750 /var/lib/tokenmill
  serve() {
    inside setpriv --reuid tokenmill --regid tokenmill --clear-groups env "${settings[@]}" tokenmill serve "$asked" >"$work/serve.log" 2>&1 &
    for _ in $(seq 300); do curl -fs localhost:8080/readyz >/dev/null && return; sleep 0.1; done
    say "NO SERVER: $(tail -1 "$work/serve.log")"
    return 1
  }
  ask() {
    curl -fs localhost:8080/v1/chat/completions -H 'content-type: application/json' \
      -d '{"messages":[{"role":"user","content":"'"$(printf 'Tell me of the sea and the sky. %.0s' $(seq 40))"'"}],"max_tokens":8,"seed":1,"temperature":0}'
  }
  pid() { pgrep -f 'tokenmill serve' -n -u "$(inside id -u tokenmill)"; }
  serve
  local first second
  first=$(ask)
  sleep 1
  kill -9 "$(pid)"
  wait 2>/dev/null || true
  serve
  second=$(ask)
  local text='s/.*"content":"\([^"]*\)".*/\1/'
  [ "$(sed "$text" <<<"$first")" = "$(sed "$text" <<<"$second")" ] || { say "ANOTHER ANSWER after kill -9"; return 1; }
  say "killed and started again: the same answer, $(grep -o '"disk_tokens":[0-9]*' <<<"$second" || echo 'no disk_tokens') of its prompt from disk"
  kill -TERM "$(pid)"
  wait 2>/dev/null || true
  say "SIGTERM: $(tail -1 "$work/serve.log" | cut -c1-80)"
}

# The image without a daemon: its layer laid out, and run as its configuration says.
image() {
  how=image; bare
  local begun; begun=$(now)
  mkdir -p "$work/oci"
  rm -rf "$work/image"
  tar -xf "$dist"/tokenmill-*-oci.tar -C "$work/oci"
  python3 - "$work/oci" "$work/layer" <<'PY'
import hashlib, json, pathlib, shutil, sys
oci, out = map(pathlib.Path, sys.argv[1:])
blob = lambda d: oci / "blobs" / d["digest"].replace(":", "/")
for path in (oci / "blobs/sha256").iterdir():
    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, path
manifest = json.loads(blob(json.loads((oci / "index.json").read_text())["manifests"][0]).read_text())
config = json.loads(blob(manifest["config"]).read_text())
assert config["config"]["User"] == "65534:65534"
shutil.copy(blob(manifest["layers"][0]), out)
PY
  mkdir "$work/image"
  tar -xzf "$work/layer" -C "$work/image"
  mkdir -p "$work/image/proc"
  mount -t proc proc "$work/image/proc"
  [ ! -f "$model" ] || cp "$model" "$work/image/model.gguf"
  say "laid out in $(since "$begun"), $(find "$work/image" -xdev -type f -not -path '*/proc/*' | wc -l) files"
  begun=$(now)
  local output
  output=$(chroot --userspec=65534:65534 "$work/image" /usr/bin/tokenmill run "$asked" "Why is the sky blue?" -n 20 2>"$work/err" </dev/null) \
    || { say "NO ANSWER: $(tail -1 "$work/err")"; return 1; }
  say "answered as nobody in $(since "$begun"): $(echo "$output" | head -1 | cut -c1-60)"
  umount "$work/image/proc"
}

(cd "$dist" && sha256sum --quiet -c SHA256SUMS) && echo "SHA256SUMS hold"
for suite in "${suites[@]}"; do
  for install in archive wheel deb image; do
    "$install" || say "FAILED"
  done
done
