#compdef kurma
# Completion of kurma for zsh, printed by `kurma completion zsh`.
_kurma() {
	local answer line word help
	local -i width
	local -a lines whole part help_whole help_part
	answer=$(command $words[1] __complete "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null) || return 1
	lines=("${(@f)answer}")
	for line in "${(@)lines[2,-1]}"; do
		word=${line%%$'\t'*}
		((${#word} > width)) && width=${#word}
	done
	for line in "${(@)lines[2,-1]}"; do
		word=${line%%$'\t'*}
		help=${line#*$'\t'}
		[[ -n $help ]] && help="${(r:width:)word}  -- $help" || help=$word
		if [[ $word == *[=:/] ]]; then
			part+=("$word")
			help_part+=("$help")
		else
			whole+=("$word")
			help_whole+=("$help")
		fi
	done
	# -l: one candidate on each line, for those with descriptions.
	local -a listed
	[[ "${lines[2]}" == *$'\t'?* ]] && listed=(-l)
	compadd $listed -d help_whole -a whole
	compadd -S '' $listed -d help_part -a part
	case $lines[1] in
	files) [[ $PREFIX == --*=* ]] && compset -P '--*='; _files ;;
	directories) [[ $PREFIX == --*=* ]] && compset -P '--*='; _files -/ ;;
	esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
	_kurma "$@"
else
	compdef _kurma kurma
fi
