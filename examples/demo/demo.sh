#!/bin/sh
# What Kurma does, start to finish, with nothing left behind. `./dev demo` calls it with everything set up: kurma in
# PATH, busybox-static and curl installed. No network is needed: registry.py stands in for Docker Hub.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/kurma-demo.XXXXXX")
export KURMA_DIR="$work/state" KURMA_CONFIG="$work/kurma.json"
registry=
server=
if [ -t 1 ] && [ -z "${NO_COLOR-}" ]; then
	bold=$(printf '\033[1m') dim=$(printf '\033[2m') plain=$(printf '\033[0m')
else
	bold='' dim='' plain=''
fi

say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
show() {
	printf '%s# %s%s\n' "$dim" "$*" "$plain"
	"$@"
}
# Copies a pod file, with the path of the demo's image in place of @IMAGE@.
fill_in() { sed "s,@IMAGE@,$work/busybox.aci," "$here/$1" >"$work/$1"; }
fail() {
	echo "demo: $*" >&2
	exit 1
}
# Waits up to ten seconds until a command succeeds.
until_true() {
	for _ in $(seq 100); do
		"$@" && return
		sleep 0.1
	done
	fail "waited in vain for: $*"
}
daemon() { kurma info --format json | python -c 'import json, sys; print((json.load(sys.stdin)["daemon"] or {}).get("pid", ""))'; }
asked() { kurma logs server/asker | grep -q hello; }
adopted() { [ "$(kurma events --since 0 --no-follow --kind adopted --pod web --format json | wc -c)" -gt 5 ]; }
answers() { curl -s "http://127.0.0.1:$port/" | grep -q hello; }
has_ended() { ! kill -0 "$1" 2>/dev/null; }

clean_up() {
	status=$?
	trap - EXIT INT TERM HUP
	if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
		kill -TERM "$server" && wait "$server" || :
	fi
	for pod in $(kurma list --format json 2>/dev/null | sed -n 's/.*"uuid": *"\([^"]*\)".*/\1/p'); do
		kurma rm --force "$pod" >/dev/null 2>&1 || :
	done
	kurma network rm default >/dev/null 2>&1 || :
	kurmad=$(daemon 2>/dev/null) || kurmad=
	if [ -n "$kurmad" ]; then
		kill -TERM "$kurmad" && until_true has_ended "$kurmad" || :
	fi
	[ -z "$registry" ] || kill "$registry"
	rm -rf "$work"
	[ "$status" -eq 0 ] || echo "demo: failed with status $status" >&2
	exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The demo installs a plugin, so it has an environment of its own, above the one that kurma is in.
developers=$(command -v kurma)
python -m venv --without-pip "$work/venv"
below=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for packages in "$work"/venv/lib/python*/site-packages; do
	echo "import site; site.addsitedir('$below')" >"$packages/below.pth"
done
python_of_developers=$(command -v python)
for program in kurma kurmad; do
	sed "1s,.*,#!$work/venv/bin/python," "${developers%/*}/$program" >"$work/venv/bin/$program"
done
cat >"$work/venv/bin/pip" <<END
#!/bin/sh
export PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0 PIP_QUIET=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
exec $python_of_developers -m pip --python $work/venv/bin/python "\$@"
END
chmod 755 "$work"/venv/bin/*
PATH=$work/venv/bin:$PATH

# The files of an image: busybox, and a page.
root=$work/rootfs
mkdir -p "$root/bin" "$root/etc" "$root/srv/www" "$root/tmp"
cp /bin/busybox "$root/bin/busybox"
for applet in sh httpd wget sleep echo hostname id ip cat true; do ln -s busybox "$root/bin/$applet"; done
echo 'root:x:0:0:root:/root:/bin/sh
www:x:1000:1000:www:/srv/www:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:
www:x:1000:' >"$root/etc/group"
echo 'hello from a pod' >"$root/srv/www/index.html"

python "$here/registry.py" "$root" >"$work/registry" &
registry=$!
until_true test -s "$work/registry"
# A registry of this machine is the mirror of Docker Hub. For the rest, Kurma's defaults.
printf '{"registries": {"mirrors": {"docker.io": ["%s"]}}}\n' "$(cat "$work/registry")" >"$KURMA_CONFIG"
port=$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')

say "A web server from a registry, in the background, with a published port"
show kurma run -d --name web -p "$port:80" docker://docker.io/library/web:1.0
until_true answers
show curl -s "http://127.0.0.1:$port/"
show kurma ps

say "A third-party plugin: pip installs it, and kurma has a new command"
show pip install "$(dirname "$here")/plugins/command"
show kurma uptime

say "The daemon is killed: the pod goes on, and the next kurmad adopts it"
killed=$(daemon)
show kill -KILL "$killed"
until_true has_ended "$killed"
show kurma ps
show curl -s "http://127.0.0.1:$port/"
show kurma run -d --name second docker://docker.io/library/web:1.0
[ "$(daemon)" != "$killed" ] || fail "no new kurmad was started"
until_true adopted
show kurma events --since 0 --no-follow --kind adopted
show kurma exec web id
show kurma stop web second
show kurma rm web second

say "An image archive, made of a directory"
show kurma image build --from-rootfs "$root" --name example.com/busybox --label version=1.0 --exec /bin/sh -o "$work/busybox.aci"
show kurma image fetch "$work/busybox.aci"
show kurma image list

say "A pod of two apps that share localhost: one serves, one asks"
fill_in pod.yml
show kurma run --name server --pod "$work/pod.yml" &
server=$!
address_of() { address=$(kurma list --no-legend | sed -n 's/.* running .*default=\([0-9.]*\).*/\1/p'); [ -n "$address" ]; }
until_true address_of
until_true asked
show kurma list

say "A second pod reaches it over the bridge, at $address"
show kurma run --rm --name asker "$work/busybox.aci" --exec /bin/wget -- -q -O - "http://$address:8080/"

say "Logs, of both apps"
show kurma logs server --timestamps

say "Stopping it"
show kurma stop server
wait "$server" || echo "the foreground command ended with status $?"
server=
show kurma list
show kurma rm server

say "Exit codes: one app ends with 0, the other with 42"
fill_in codes.yml
status=0
show kurma run --name codes --pod "$work/codes.yml" || status=$?
echo "kurma run ended with status $status"
[ "$status" -eq 42 ] || fail "42 was expected"
show kurma status codes
show kurma rm codes

say "Nothing runs, nothing is mounted, no address is taken"
show kurma gc --grace-period 0
show kurma network rm default
if grep -q "$work" /proc/mounts; then
	fail "something is still mounted below $work"
fi
echo "IP forwarding stays on, since other pods may need it; without pods: sysctl net.ipv4.ip_forward=0"
echo "done"
