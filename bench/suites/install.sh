#!/usr/bin/env bash
# install.sh DIST MODEL [SUITE...]: installs what `cargo xtask dist` made in bare roots without Rust or a compiler, as docs/install.md says, and uses it:
# version, doctor, an answer of MODEL; the package's service under a systemd that runs: killed, started again, the package installed over it, stopped. MODEL is a
# file, or a name that every root fetches for itself: from the hub, or from its mirror HF_ENDPOINT (`python3 -m http.server` in a folder of USER/REPO/resolve/COMMIT/FILE is one).
# SUITE is one of Debian's, or musl: busybox and musl alone (default: bookworm bullseye musl). Needs root, mmdebstrap and a mirror of Debian
# (MIRROR; ROOTS: a folder of SUITE.tar, made where they are not there). `bench/suites/install.sh DIST smollm2 > bench/suites/install.txt`
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,6p "$0" | cut -c3-; exit 2; }
# What is mounted here goes with this script.
[ -n "${INSTALL_SH_ALONE:-}" ] || INSTALL_SH_ALONE=1 exec unshare --mount --propagation private "$0" "$@"
dist=$(realpath "$1")
model=$2
shift 2
suites=("$@")
[ $# -gt 0 ] || suites=(bookworm bullseye musl)
roots=${ROOTS:-}
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
[ -n "$roots" ] || roots=$work/roots
mkdir -p "$roots"
failed=0
hub=()
[ -z "${HF_ENDPOINT:-}" ] || hub=("HF_ENDPOINT=$HF_ENDPOINT")

say() { printf '%-9s %-8s %s\n' "$suite" "$how" "$*"; }
fail() { say "FAILED: $*"; failed=1; return 1; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# made: the base of a suite, once.
made() {
  [ ! -f "$roots/$suite.tar" ] || return 0
  if [ "$suite" = musl ]; then
    mmdebstrap --quiet --variant=extract --include=busybox-static,musl bookworm "$roots/part.tar" "${MIRROR:-http://deb.debian.org/debian}"
  else
    mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3-venv,systemd,util-linux \
      "$suite" "$roots/part.tar" "${MIRROR:-http://deb.debian.org/debian}"
  fi >/dev/null
  mv "$roots/part.tar" "$roots/$suite.tar"
}

# bare: a fresh root for one way to install.
bare() {
  how=$1
  root=$work/$suite-$how
  mkdir "$root"
  tar -xf "$roots/$suite.tar" -C "$root"
  mkdir -p "$root/proc" "$root/dist" "$root/etc" "$root/tmp"
  mount -t proc proc "$root/proc"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp "$dist"/* "$root/dist/"
  asked=$model
  if [ -f "$model" ]; then cp "$model" "$root/model.gguf" && asked=/model.gguf; fi
}
gone() {
  umount "$root/proc"
  rm -rf --one-file-system "$root"
}
inside() { chroot "$root" /usr/bin/env -i "${hub[@]}" HOME=/root DEBIAN_FRONTEND=noninteractive PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$@"; }

# first_token SECONDS: when the first token came of a run that took so long and told of itself in $work/err: with the fetch of its model and the load.
first_token() {
  sed -n 's/.* \([0-9]*\) generated.*, \([0-9.]*\) tok\/s .*first token.*/\1 \2/p' "$work/err" | awk -v took="$1" '{ printf "%.1f", took - ($1 - 1) / $2 }'
}

# answers SECONDS COMMAND...: COMMAND is a tokenmill that was installed in that time. It says what it is, finds nothing wrong, and answers.
answers() {
  local took=$1 output first begun
  shift
  inside "$@" --version >"$work/version" 2>&1 || { fail "$(tail -1 "$work/version")"; return 1; }
  inside "$@" doctor >"$work/doctor" 2>&1 || { fail "doctor: $(tail -1 "$work/doctor")"; return 1; }
  begun=$(now)
  output=$(inside "$@" run "$asked" "Why is the sky blue?" -n 20 2>"$work/err" </dev/null) || { fail "no answer: $(tail -1 "$work/err")"; return 1; }
  first=$(first_token "$(since "$begun")")
  say "$(head -1 "$work/version"); doctor finds nothing wrong; $(awk -v a="$took" -v b="$first" 'BEGIN { printf "%.1f", a + b }') s from nothing to the first token" \
    "($took s to install$(fetched)): $(head -1 <<<"$output" | cut -c1-40)…"
}

# fetched: what the run brought first.
fetched() { grep -q '^trying' "$work/err" && printf ', %s fetched' "$(grep -o '[0-9.]* MiB$' "$work/err" | tail -1)"; true; }

# refused: it must not install here, and says why.
refused() { say "does not install: $(grep -m 1 -iE "$1" "$work/err" | xargs -0 | cut -c1-150)"; }

archive() {
  bare archive
  local begun; begun=$(now)
  inside sh -c 'tar -xzf /dist/tokenmill-*-x86_64-linux.tar.gz -C /opt && ln -s /opt/tokenmill-*/bin/tokenmill /usr/local/bin/'
  answers "$(since "$begun")" tokenmill || true
  gone
}

wheel() {
  bare wheel
  local begun; begun=$(now)
  inside python3 -m venv /venv
  if inside sh -c '/venv/bin/pip install --quiet --no-index --disable-pip-version-check /dist/tokenmill_cli-*.whl' 2>"$work/err"; then
    answers "$(since "$begun")" /venv/bin/tokenmill || true
  else
    refused 'not a supported wheel'
  fi
  gone
}

deb() {
  bare deb
  local begun; begun=$(now)
  if ! inside sh -c 'apt-get install -y -q /dist/tokenmill_*_amd64.deb' >"$work/err" 2>&1; then
    refused 'libc6'
    gone
    return
  fi
  answers "$(since "$begun")" tokenmill || true
  say "user: $(inside id tokenmill)"
  unit
  service || true
  [ -z "${outer:-}" ] || { kill -9 "$outer" 2>/dev/null; wait "$outer" 2>/dev/null; outer=; } || true
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  inside dpkg --purge tokenmill >"$work/err" 2>&1 || fail "$(tail -1 "$work/err")" || true
  local left; left=$(inside sh -c 'ls -d /usr/bin/tokenmill /etc/tokenmill /var/lib/tokenmill /usr/lib/systemd/system/tokenmill.service 2>/dev/null || true')
  if [ -z "$left" ]; then say "purged: nothing is left"; else fail "left behind: $left" || true; fi
  gone
}

# unit: what systemd says of it without running it.
unit() {
  inside systemd-analyze --man=no verify /usr/lib/systemd/system/tokenmill.service >"$work/err" 2>&1 || true
  if grep -q tokenmill "$work/err"; then fail "systemd-analyze verify: $(grep -m 1 tokenmill "$work/err")" || true; else say "systemd-analyze verify: nothing to say"; fi
}

# boot: systemd in the root, as process 1 of namespaces of its own; sets booted, the process to enter them by.
boot() {
  unshare --pid --fork --kill-child --mount --uts --ipc --cgroup bash -c '
    mount --make-rprivate / && mount --bind "$1" "$1" && cd "$1"
    umount -l proc; mount -t proc proc proc; mount -t sysfs sysfs sys; mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp
    if grep -q "^cgroup2 /sys/fs/cgroup " /proc/mounts; then
      mount -t cgroup2 cgroup2 sys/fs/cgroup
    else
      mount -t tmpfs cgroup sys/fs/cgroup && mkdir sys/fs/cgroup/systemd && mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
    fi
    mkdir -p old && pivot_root . old && umount -l old
    exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target' bash "$root" >"$work/boot" 2>&1 </dev/null &
  outer=$!
  local state
  for _ in $(seq 300); do
    booted=$(pgrep -P "$outer" || true)
    state=$([ -z "$booted" ] || within systemctl is-system-running 2>/dev/null || true)
    case $state in running | degraded) return ;; esac
    sleep 0.1
  done
  fail "systemd does not start here: ${state:-$(tail -1 "$work/boot")}"
}
within() { nsenter -t "$booted" -m -p -u -i -C -r -w /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin "$@"; }
ready() {
  for _ in $(seq 300); do curl -fs localhost:18080/readyz >/dev/null && return; sleep 0.1; done
  fail "no server: $(within journalctl -u tokenmill -n 3 --no-pager -o cat | tr '\n' ' ')"
}
ask() {
  curl -fsS localhost:18080/v1/chat/completions -H 'content-type: application/json' -H "authorization: Bearer $key" \
    -d '{"messages":[{"role":"user","content":"'"$(printf 'Tell me of the sea and the sky. %.0s' $(seq 40))"'"}],"max_tokens":8,"seed":1,"temperature":0}'
}
of() { python3 -c 'import json, sys; a = json.loads(sys.argv[1]); print(eval(sys.argv[2], {"a": a}))' "$1" "$2"; }

# service: enabled, used, killed, used again, stopped while it answers.
service() {
  local own=$root/var/lib/tokenmill first second begun
  [ ! -f "$root/model.gguf" ] || { cp "$root/model.gguf" "$own/" && asked=/var/lib/tokenmill/model.gguf; }
  # (What `sudo -H -u tokenmill` does.)
  local as=(setpriv --reuid tokenmill --regid tokenmill --clear-groups env HOME=/var/lib/tokenmill tokenmill)
  key=$(inside "${as[@]}" key add ann 2>"$work/err") || { fail "$(tail -1 "$work/err")"; return 1; }
  [ -f "$model" ] || inside "${as[@]}" pull "$model" >"$work/pulled" 2>"$work/err" || { fail "$(tail -1 "$work/err")"; return 1; }
  sed -i "s|^# port = .*|port = 18080|; s|^# models = .*|models = [\"$asked\"]|" "$root/etc/tokenmill/config.toml"
  boot || return 1
  within systemctl enable --quiet --now tokenmill >"$work/err" 2>&1 || { fail "$(within journalctl -u tokenmill -n 3 --no-pager -o cat | tr '\n' ' ')"; return 1; }
  ready || return 1
  say "service: $(within systemctl is-active tokenmill), $(within systemctl is-enabled tokenmill), $(within systemd-analyze security tokenmill --no-pager | grep -o 'level for.*: [0-9.]* [A-Z]*' | sed 's/level for.*:/systemd-analyze security/')"
  first=$(ask) || { fail "no answer"; return 1; }
  [ "$(key=none ask 2>&1 | grep -c 401)" = 1 ] || fail "it answers whoever has no key" || true
  sleep 2
  within systemctl kill --signal=KILL tokenmill
  begun=$(now)
  sleep 0.5
  ready || return 1
  begun=$(since "$begun")
  second=$(ask) || { fail "no answer"; return 1; }
  local text='a["choices"][0]["message"]["content"]' disk='a["usage"]["prompt_tokens_details"]["disk_tokens"]' prompt='a["usage"]["prompt_tokens"]'
  [ "$(of "$first" "$text")" = "$(of "$second" "$text")" ] || fail "another answer after kill -9" || true
  [ "$(of "$second" "$disk")" -gt 0 ] || fail "the prompt cache is lost" || true
  say "service: kill -9, ready again after $begun s (2 s of them RestartSec), the same answer, $(of "$second" "$disk") of $(of "$second" "$prompt") prompt tokens read back from disk"
  within systemctl reload tokenmill 2>"$work/err" || fail "reload: $(tail -1 "$work/err")" || true
  ready || return 1
  within systemctl show -p MainPID --value tokenmill >"$work/pid"
  within env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --reinstall /dist/$(cd "$dist" && ls tokenmill_*_amd64.deb) >"$work/err" 2>&1 || { fail "installing again: $(tail -1 "$work/err")"; return 1; }
  ready || return 1
  [ "$(within systemctl show -p MainPID --value tokenmill)" != "$(cat "$work/pid")" ] || fail "installed again, the old program runs" || true
  second=$(ask) || { fail "no answer"; return 1; }
  [ "$(of "$first" "$text")" = "$(of "$second" "$text")" ] || fail "another answer after installing again" || true
  say "service: the package installed over it: started again, settings, key and model are there, $(of "$second" "$disk") of $(of "$second" "$prompt") prompt tokens read back from disk"
  curl -fsN localhost:18080/v1/chat/completions -H 'content-type: application/json' -H "authorization: Bearer $key" \
    -d '{"messages":[{"role":"user","content":"Count."}],"max_tokens":200,"seed":1,"ignore_eos":true,"stream":true}' >"$work/stream" 2>&1 &
  local client=$!
  until grep -q content "$work/stream" 2>/dev/null; do sleep 0.05; done
  begun=$(now)
  within systemctl stop tokenmill
  wait "$client" || fail "the answer was broken off" || true
  grep -q DONE "$work/stream" || fail "the answer was broken off" || true
  say "service: stopped while it answered: the answer came whole, $(within systemctl show -p Result --value tokenmill) after $(since "$begun") s"
}

# image: without a daemon: its layer laid out in an empty folder, and run as its configuration says.
image() {
  how=image
  root=$work/$suite-image
  local begun ran output first set entry; begun=$(now)
  mkdir -p "$work/oci" "$root"
  tar -xf "$dist"/tokenmill-*-oci.tar -C "$work/oci"
  python3 - "$work/oci" "$work/layer" <<'PY'
import hashlib, json, pathlib, shutil, sys
oci, out = map(pathlib.Path, sys.argv[1:])
blob = lambda d: oci / "blobs" / d["digest"].replace(":", "/")
for path in (oci / "blobs/sha256").iterdir():
    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, path
manifest = json.loads(blob(json.loads((oci / "index.json").read_text())["manifests"][0]).read_text())
config = json.loads(blob(manifest["config"]).read_text())["config"]
assert config["User"] == "65534:65534"
shutil.copy(blob(manifest["layers"][0]), out)
for name in ["Env", "Entrypoint", "Cmd"]:
    out.with_name(name).write_text("".join(f"{word}\n" for word in config[name]))
PY
  tar -xzf "$work/layer" -C "$root"
  begun=$(since "$begun")
  say "files: $(cd "$root" && find . -type f | sort | tr '\n' ' ')"
  [ -n "$(find "$root/models" -maxdepth 0 -perm -o+w)" ] || fail "nobody cannot write to /models" || true
  mkdir -p "$root/proc"
  mount -t proc proc "$root/proc"
  asked=$model
  if [ -f "$model" ]; then cp "$model" "$root/model.gguf" && asked=/model.gguf; fi
  ran=$(now)
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  mapfile -t set <"$work/Env"
  mapfile -t entry <"$work/Entrypoint"
  nobody=(env -i "${hub[@]}" "${set[@]}" "TOKENMILL_MODELS=$asked" TOKENMILL_PORT=18080 "$(command -v chroot)" --userspec=65534:65534 "$root" "${entry[@]}")
  if output=$("${nobody[@]}" run "$asked" "Why is the sky blue?" -n 20 2>"$work/err" </dev/null); then
    first=$(first_token "$(since "$ran")")
    say "as nobody, in a root with nothing else: $(awk -v a="$begun" -v b="$first" 'BEGIN { printf "%.1f", a + b }') s from nothing to the first token$(fetched):" \
      "$(head -1 <<<"$output" | cut -c1-40)…"
    serves || true
  else
    fail "no answer: $(tail -1 "$work/err")" || true
  fi
  gone
}

# serves: what the image does without being told anything: not before there is a key; then it answers who has it, and stops when it is told to.
serves() {
  local command server begun answer
  mapfile -t command <"$work/Cmd"
  ! timeout 30 "${nobody[@]}" "${command[@]}" >"$work/err" 2>&1 </dev/null || { fail "it serves other machines without a key"; return 1; }
  grep -q 'key add' "$work/err" || { fail "without a key: $(tail -1 "$work/err")"; return 1; }
  key=$("${nobody[@]}" key add ann 2>"$work/err") || { fail "$(tail -1 "$work/err")"; return 1; }
  begun=$(now)
  "${nobody[@]}" "${command[@]}" >"$work/err" 2>&1 </dev/null &
  server=$!
  for _ in $(seq 300); do ! curl -fs localhost:18080/readyz >/dev/null || break; sleep 0.1; done
  begun=$(since "$begun")
  if answer=$(ask) && [ "$(key=none ask 2>&1 | grep -c 401)" = 1 ]; then
    say "as its configuration says: wants a key first; with one, ready after $begun s, it answers who has it: $(of "$answer" 'a["usage"]["completion_tokens"]') tokens"
  else
    fail "it does not serve: $(tail -1 "$work/err")" || true
  fi
  kill -TERM "$server"
  wait "$server" || fail "stopped, it ends with $?" || true
}

# musl: the archive's program, where there is no glibc.
musl() {
  bare archive
  mkdir -p "$root/opt"
  tar -xzf "$dist"/tokenmill-*-x86_64-linux.tar.gz -C "$root/opt" --strip-components=1
  local output
  if output=$(chroot "$root" /opt/bin/tokenmill run "$asked" "Why is the sky blue?" -n 20 2>"$work/err" </dev/null); then
    say "answers: $(head -1 <<<"$output" | cut -c1-60)"
  else
    say "does not start, there is no glibc ($(tail -1 "$work/err" | grep -o '[^:]*$' | xargs)); the image brings its own"
  fi
  gone
}

suite=all how=sums
(cd "$dist" && sha256sum --quiet -c SHA256SUMS) && say "SHA256SUMS hold; $(cd "$dist" && stat -c '%n %s' ./*tar.gz | tr -d ./ | head -1 | cut -d' ' -f2) bytes of archive"
for suite in "${suites[@]}"; do
  made
  if [ "$suite" = musl ]; then
    musl
  else
    for install in archive wheel deb; do "$install"; done
  fi
done
suite=any
image
exit $failed
