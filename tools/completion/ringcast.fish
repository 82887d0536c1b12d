# SPDX-License-Identifier: Apache-2.0
# Completion of `ringcast` for fish: commands and options, as the help texts have them, and the
# names of the rings that there are now.

# The words that a help text lists, with what it says of them.
function __ringcast_listed
    ringcast help $argv[1] 2>/dev/null | string replace -rf '^  ([a-z]+)  +(.*)' '$1\t$2'
end

function __ringcast_options
    ringcast help (commandline -opc)[2] 2>/dev/null | string match -r '^  --.*' | string match -ra -- '--[a-z]+'
    echo -- --help
end

complete -c ringcast -f
complete -c ringcast -n __fish_use_subcommand -l help -d 'help'
complete -c ringcast -n __fish_use_subcommand -l version -d 'the version'
complete -c ringcast -n __fish_use_subcommand -a '(__ringcast_listed help)'
complete -c ringcast -n 'not __fish_use_subcommand' -a '(__ringcast_options)'
complete -c ringcast -n 'not __fish_use_subcommand' -l format -x -a 'text json'
complete -c ringcast -n '__fish_seen_subcommand_from stat hz record dump' -a '(ringcast list --names 2>/dev/null)'
complete -c ringcast -n '__fish_seen_subcommand_from record replay dump' -F
complete -c ringcast -n '__fish_seen_subcommand_from perf' -a '(__ringcast_listed perf)'
complete -c ringcast -n '__fish_seen_subcommand_from help' -a '(__ringcast_listed help)'
