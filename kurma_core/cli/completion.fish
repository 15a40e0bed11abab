# Completion of kurma for fish, printed by `kurma completion fish`.
function __kurma_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines (command $words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    or return
    set -l place (string replace -r -- '^(--[^=]*=)?.*$' '$1' "$current")
    set -l path (string replace -r -- '^--[^=]*=' '' "$current")
    switch $lines[1]
        case files
            __fish_complete_path "$path" | string replace -r -- '^' "$place"
        case directories
            __fish_complete_directories "$path" | string replace -r -- '^' "$place"
    end
    string join -- \n $lines[2..-1]
end
complete -c kurma -f -a '(__kurma_complete)'
