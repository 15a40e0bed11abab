#!/bin/sh
# Two pods on a bridge, start to finish, with nothing left behind. `./dev demo` calls it with everything set up:
# kurma in PATH, busybox-static and the CNI plugins installed.
set -eu

work=$(mktemp -d "${TMPDIR:-/tmp}/kurma-demo.XXXXXX")
export KURMA_DIR="$work/state"
# The demo wants Kurma's defaults, whatever this machine's own configuration says.
printf '{}\n' >"$work/kurma.json"
export KURMA_CONFIG="$work/kurma.json"
forward=$(cat /proc/sys/net/ipv4/ip_forward)
server=

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() {
	printf '\033[2m$ kurma %s\033[0m\n' "$*"
	kurma "$@"
}

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
	echo "$forward" >/proc/sys/net/ipv4/ip_forward
	rm -rf "$work"
	[ "$status" -eq 0 ] || echo "demo: failed with status $status" >&2
	exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "An image, from Debian's busybox"
root=$work/rootfs
mkdir -p "$root/bin" "$root/etc" "$root/srv/www" "$root/tmp"
cp /bin/busybox "$root/bin/busybox"
for applet in sh httpd wget sleep echo hostname id ip cat true; do ln -s busybox "$root/bin/$applet"; done
echo 'root:x:0:0:root:/root:/bin/sh
www:x:1000:1000:www:/srv/www:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:
www:x:1000:' >"$root/etc/group"
echo 'hello from a pod' >"$root/srv/www/index.html"
show image build --from-rootfs "$root" --name example.com/busybox --label version=1.0 --exec /bin/sh -o "$work/busybox.aci"
show image fetch "$work/busybox.aci"
show image list

say "A pod of two apps that share localhost: one serves, one asks"
sed "s,@IMAGE@,$work/busybox.aci," "$(dirname "$0")/pod.yml" >"$work/pod.yml"
show run --name server --pod "$work/pod.yml" &
server=$!
address=
for _ in $(seq 100); do
	address=$(kurma list --no-legend | sed -n 's/.* running .*default=\([0-9.]*\).*/\1/p')
	[ -z "$address" ] || break
	kill -0 "$server" 2>/dev/null || exit 1
	sleep 0.1
done
[ -n "$address" ] || { echo "demo: the server's pod has no address" >&2; exit 1; }
for _ in $(seq 100); do
	kurma logs server asker | grep -q hello && break
	sleep 0.1
done
show list

say "A second pod reaches it over the bridge, at $address"
show run --rm --name asker "$work/busybox.aci" --exec /bin/wget -- -q -O - "http://$address:8080/"

say "A command inside the first pod"
show enter server web -- /bin/id

say "Logs, of both apps"
show logs server --timestamps

say "Stopping it"
show stop server
wait "$server" || echo "the foreground command ended with status $?"
server=
show list
show rm server

say "Exit codes: one app ends with 0, the other with 42"
sed "s,@IMAGE@,$work/busybox.aci," "$(dirname "$0")/codes.yml" >"$work/codes.yml"
status=0
show run --name codes --pod "$work/codes.yml" || status=$?
echo "kurma run ended with status $status"
[ "$status" -eq 42 ] || { echo "demo: 42 was expected" >&2; exit 1; }
show status codes
show rm codes

say "Nothing runs, nothing is mounted, no address is taken"
show gc --grace-period 0
show network rm default
if ls /run/netns 2>/dev/null | grep -q "^kurma-"; then
	echo "demo: a network namespace of Kurma's is left (of another state directory?)"
fi
if grep -q "$work" /proc/mounts; then
	echo "demo: something is still mounted below $work" >&2
	exit 1
fi
echo "done"
