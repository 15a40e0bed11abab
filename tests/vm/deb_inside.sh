# Runs in a virtual machine whose first program is systemd (see check_deb.py): the Debian package from its installation
# to its purge. Each check writes a line as tests.vm.ran does, and its output where it failed.
tries=200
while port=$(echo /dev/vport*) && [ ! -c "$port" ] && [ $((tries -= 1)) -gt 0 ]; do sleep 0.05; done
exec >"$port" 2>&1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
mkdir -p /results
failures=0

check() {
	name=$1
	shift
	if ("$@") >/results/output 2>&1; then
		echo "passed $name" | tee -a /results/ran
	else
		echo "failed $name" | tee -a /results/ran
		cat /results/output
		failures=$((failures + 1))
	fi
}

# The machine is used once, and its disk is slow.
installs() { dpkg --force-unsafe-io -i "$1"; }
active() { for unit in "$@"; do systemctl is-active "$unit" || return 1; done; }
inactive() { for unit in "$@"; do ! systemctl is-active "$unit" || return 1; done; }
enabled() { for unit in "$@"; do systemctl is-enabled "$unit" || return 1; done; }
app_pid() { kurma show web --format json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1; }
same_app() { now=$(app_pid) && echo "before $before, now $now" && [ -n "$before" ] && [ "$now" = "$before" ]; }
whole_log() { kurma logs web | awk '$NF != ++line { print "line", line, "is", $0; exit 1 }'; }
no_mount() { ! grep ' /var/lib/kurma/' /proc/self/mountinfo; }
no_unit() { ! systemctl cat kurmad.service; }
no_file() { for path in "$@"; do [ ! -e "$path" ] || { ls -la "$path"; return 1; }; done; }

count='i=0; while :; do i=$((i+1)); echo $i; sleep 1; done'

check installed installs /root/old.deb
check units-are-enabled enabled kurmad.socket kurmad.service kurma-gc.timer
check socket-and-timer-run active kurmad.socket kurma-gc.timer
check kurmad-waits-for-a-request inactive kurmad.service
check pod-runs kurma run -d --name web --net none /root/busybox.aci -- -c "$count"
check request-started-kurmad active kurmad.service
before=$(app_pid)
check upgraded installs /root/new.deb
check kurmad-runs-after-the-upgrade active kurmad.socket kurmad.service
check pod-survives-the-upgrade same_app
check its-log-is-whole whole_log
check restarted systemctl restart kurmad.service
check pod-survives-the-restart same_app
check removed dpkg -r kurma
check nothing-is-mounted no_mount
check units-are-gone no_unit
check state-stays test -d /var/lib/kurma
check purged dpkg -P kurma
check all-is-gone no_file /opt/kurma /etc/kurma /var/lib/kurma /run/kurma /usr/bin/kurma
check links-of-units-are-gone sh -c '! find /etc/systemd/system -name "kurma*" | grep -v kurma-test'

echo "$failures" >/results/exit
[ "$failures" = 0 ] || journalctl -b --no-pager | tail -n 60
rm -f /results/output
tar -C /results -cf /dev/vdb .
sync
exec busybox poweroff -f
