package Stager;
# Shared by the stager and its call-ins: JSON, system calls, users, and where things are.
use strict;
use warnings;
use Exporter 'import';
use POSIX ();
our @EXPORT = qw(%SYS $RUN read_file write_file decode fail call_in plain account pid_of_app log_lines);

our $RUN = '/run/apps'; # by app: "sandbox", the PID of its first process; "spec", its account and environment
my %calls = (
	x86_64  => { mount => 165, setns => 308, prctl => 157, clock_gettime => 228 },
	aarch64 => { mount => 40,  setns => 268, prctl => 167, clock_gettime => 113 },
);
my $machine = (split ' ', read_file('/proc/sys/kernel/arch') // '')[0] // '';
our %SYS = %{ $calls{$machine} || $calls{x86_64} };

sub read_file {
	my ($path) = @_;
	open(my $file, '<:raw', $path) or return undef;
	local $/;
	return scalar <$file>;
}

# By a finished file that is renamed: nobody ever reads half of it.
sub write_file {
	my ($path, $text) = @_;
	open(my $file, ">:raw", "$path.new") or fail("cannot write $path: $!");
	print($file $text) && close($file) && rename("$path.new", $path)
		or fail("cannot write $path: $!");
}

sub fail {
	my ($text, $code) = @_;
	print STDERR "bubblewrap stager: $text\n";
	# Not exit: Perl would close descriptor 4 first, and the pod look as if it ran.
	POSIX::_exit($code // 1);
}

# A JSON document as Perl's data; strings are bytes, as the kernel wants them.
sub decode {
	my ($text) = @_;
	my $value = value(\$text);
	$text =~ /\G\s*\z/gc or die "JSON: something stands behind the document\n";
	return $value;
}

sub value {
	my ($text) = @_;
	for ($$text) {
		if (/\G\s*\{/gc) {
			my %found;
			return \%found if /\G\s*\}/gc;
			while (1) {
				/\G\s*"/gc or die "JSON: no key\n";
				my $key = string($text);
				/\G\s*:/gc or die "JSON: no colon\n";
				$found{$key} = value($text);
				return \%found if /\G\s*\}/gc;
				/\G\s*,/gc or die "JSON: no comma\n";
			}
		}
		if (/\G\s*\[/gc) {
			my @found;
			return \@found if /\G\s*\]/gc;
			while (1) {
				push @found, value($text);
				return \@found if /\G\s*\]/gc;
				/\G\s*,/gc or die "JSON: no comma\n";
			}
		}
		return string($text) if /\G\s*"/gc;
		return $1 + 0 if /\G\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)/gc;
		return 1 if /\G\s*true/gc;
		return 0 if /\G\s*false/gc;
		return undef if /\G\s*null/gc;
	}
	die "JSON: no value\n";
}

my %escape = (b => "\b", f => "\f", n => "\n", r => "\r", t => "\t", '"' => '"', '\\' => '\\', '/' => '/');

sub string {
	my ($text) = @_;
	my $found = '';
	for ($$text) {
		while (1) {
			if (/\G([^"\\]+)/gc) { $found .= $1 }
			elsif (/\G"/gc) { return $found }
			elsif (/\G\\u([dD][89abAB]..)\\u(....)/gc) {
				$found .= bytes(0x10000 + (hex($1) - 0xd800) * 0x400 + hex($2) - 0xdc00);
			}
			elsif (/\G\\u([0-9a-fA-F]{4})/gc) { $found .= bytes(hex $1) }
			elsif (/\G\\(["\\\/bfnrt])/gc) { $found .= $escape{$1} }
			else { die "JSON: a string does not end\n" }
		}
	}
}

sub bytes { my $text = chr $_[0]; utf8::encode($text); return $text }

# The app that a call-in is about: there, or exit 2.
sub call_in {
	my ($app) = @_;
	defined $app && $app =~ /^[a-z0-9-]+$/ && -d "$RUN/$app" or fail("the pod has no app '" . ($app // '') . "'", 2);
	return $app;
}

# Whether no part of a path is a link, which would lead out of the root as seen from here.
sub plain {
	my ($root, $path) = @_;
	for my $part (grep { length } split m{/}, $path) {
		$root .= "/$part";
		return 0 if $part eq '..' || -l $root;
	}
	return 1;
}

# account('passwd' or 'group', ROOT, NAME): by the root's own file, else as it stands, else a file's owner.
sub account {
	my ($kind, $root, $name) = @_;
	if (plain($root, "/etc/$kind")) {
		for (split /\n/, read_file("$root/etc/$kind") // '') {
			my @field = split /:/;
			return $field[2] if @field > 2 && $field[0] eq $name;
		}
	}
	return $name if $name =~ /^\d+$/;
	my @status = $name =~ m{^/} && plain($root, $name) ? stat "$root$name" : ();
	return @status ? $status[ $kind eq 'group' ? 5 : 4 ] : undef;
}

# The app's own process: the child of the sandbox's first one, which only reaps.
sub pid_of_app {
	my ($app) = @_;
	my $first = read_file("$RUN/$app/sandbox") // return undef;
	return (split ' ', read_file("/proc/$first/task/$first/children") // '')[0];
}

# What stands in an app's log behind a place: [time, stream, whole line?, text], and the new place.
sub log_lines {
	my ($app, $at) = @_;
	open(my $file, '<:raw', "/pod/logs/$app.log") or return ([], $at);
	seek $file, $at, 0;
	my @found;
	while (defined(my $line = <$file>)) {
		last if $line !~ s/\n\z//;
		$at = tell $file;
		push @found, [ $1, $2, $3 eq 'F', $4 ] if $line =~ /^(\S+) (stdout|stderr) ([PF]) (.*)\z/s;
	}
	return (\@found, $at);
}

1;
