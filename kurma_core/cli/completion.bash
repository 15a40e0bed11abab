# Completion of kurma for bash, printed by `kurma completion bash`.
_kurma() {
	local left=${COMP_LINE:0:COMP_POINT} word last answer first candidate index
	local -a line=() lines=()
	# bash splits words at = and : (COMP_WORDBREAKS): the pieces are joined again.
	for ((index = 0; index <= COMP_CWORD; index++)); do
		word=${COMP_WORDS[index]}
		if [[ $index -eq 0 || $left == [[:space:]]* ]]; then
			line+=("")
		fi
		left=${left#"${left%%[![:space:]]*}"}
		[[ $index -eq $COMP_CWORD ]] && word=$left
		left=${left#"$word"}
		line[${#line[@]}-1]+=$word
	done
	last=${line[${#line[@]}-1]}
	answer=$(command "$1" __complete "${line[@]:1}" 2>/dev/null) || return
	mapfile -t lines <<<"$answer"
	first=${lines[0]}
	COMPREPLY=()
	# bash replaces only the last piece of the word.
	word=${last##*["${COMP_WORDBREAKS//[^:=]/}"]}
	[[ $COMP_WORDBREAKS == *[:=]* ]] || word=$last
	for candidate in "${lines[@]:1}"; do
		candidate=${candidate%%$'\t'*}
		COMPREPLY+=("${candidate:${#last}-${#word}}")
	done
	[[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:/] ]] && compopt -o nospace
	case $first in
	files)
		if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
			compopt -o default
		else
			compopt -o filenames
			mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
		fi
		;;
	directories) compopt -o dirnames ;;
	esac
}
complete -F _kurma kurma
