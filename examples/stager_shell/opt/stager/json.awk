# Flattens a JSON document: one line per value: its path, a tab, the value as a word that `eval` may be given.
# {"a": [{"b": "it's"}]} becomes: /a/0/b	'it'\''s'
# A line's end inside a value becomes "$nl", so that a value never takes more than its line.

{ text = text $0 "\n" }
END { at = 1; value(""); exit failed }

function fail(what) { print "not JSON: " what " at character " at > "/dev/stderr"; failed = 1; exit 1 }
function peek() { while (index(" \t\r\n", substr(text, at, 1)) && at <= length(text)) at++; return substr(text, at, 1) }
function take(wanted) { if (peek() != wanted) fail("expected " wanted); at++ }

function value(path,    first, key, count, rest) {
	first = peek()
	if (first == "{") {
		at++
		if (peek() == "}") { at++; return }
		do { if (peek() != "\"") fail("expected a key"); key = string(); take(":"); value(path "/" key) } while (more("}"))
	} else if (first == "[") {
		at++
		if (peek() == "]") { at++; return }
		do { value(path "/" count++) } while (more("]"))
	} else if (first == "\"") {
		print path "\t" word(string())
	} else {
		rest = substr(text, at, 64)
		if (!match(rest, /^(-?[0-9][-+.0-9eE]*|true|false|null)/)) fail("expected a value")
		print path "\t" word(substr(rest, 1, RLENGTH))
		at += RLENGTH
	}
}

function more(end,    found) {
	found = peek(); at++
	if (found != "," && found != end) fail("expected , or " end)
	return found == ","
}

function string(    out, found, part) {
	at++
	for (;;) {
		part = substr(text, at, 4096)
		if (part == "") fail("a string does not end")
		if (!match(part, /["\\]/)) { out = out part; at += length(part); continue }
		out = out substr(part, 1, RSTART - 1)
		at += RSTART
		if (substr(part, RSTART, 1) == "\"") return out
		found = substr(text, at++, 1)
		if (found == "n") found = "\n"
		else if (found == "t") found = "\t"
		else if (found == "r") found = "\r"
		else if (found == "b") found = "\b"
		else if (found == "f") found = "\f"
		else if (found == "u") { found = utf8(hex(substr(text, at, 4))); at += 4 }
		out = out found
	}
}

function hex(digits,    i, number) {
	for (i = 1; i <= 4; i++) number = number * 16 + index("0123456789abcdef", tolower(substr(digits, i, 1))) - 1
	return number
}

function utf8(code,    low) {
	if (code >= 55296 && code < 56320) {  # the first half of a pair
		low = hex(substr(text, at + 6, 4)); at += 6
		code = 65536 + (code - 55296) * 1024 + low - 56320
		return byte(240 + int(code / 262144)) byte(128 + int(code / 4096) % 64) byte(128 + int(code / 64) % 64) byte(128 + code % 64)
	}
	if (code < 128) return byte(code)
	if (code < 2048) return byte(192 + int(code / 64)) byte(128 + code % 64)
	return byte(224 + int(code / 4096)) byte(128 + int(code / 64) % 64) byte(128 + code % 64)
}

function byte(number) { return sprintf("%c", number) }
function word(out) { gsub(/'/, "'\\''", out); gsub(/\n/, "'\"$nl\"'", out); return "'" out "'" }
