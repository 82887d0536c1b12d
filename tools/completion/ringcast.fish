# SPDX-License-Identifier: Apache-2.0
# Completion of `ringcast` for fish: commands, options, and the names of the rings that there are now.

function __ringcast_rings
    ringcast list --names 2>/dev/null
end

complete -c ringcast -f
complete -c ringcast -n __fish_use_subcommand -l help -d 'help'
complete -c ringcast -n __fish_use_subcommand -l version -d 'the version'
complete -c ringcast -n __fish_use_subcommand -a list -d 'the rings of this user'
complete -c ringcast -n __fish_use_subcommand -a stat -d 'one ring, and the reader that holds the ring back'
complete -c ringcast -n __fish_use_subcommand -a top -d 'all rings, live'
complete -c ringcast -n __fish_use_subcommand -a hz -d 'the rate of a ring'
complete -c ringcast -n __fish_use_subcommand -a record -d 'the frames of a ring to a file'
complete -c ringcast -n __fish_use_subcommand -a replay -d 'the frames of a recording on a new ring'
complete -c ringcast -n __fish_use_subcommand -a dump -d 'what is in the frames of a recording or of a ring'
complete -c ringcast -n __fish_use_subcommand -a doctor -d 'what this machine offers'
complete -c ringcast -n __fish_use_subcommand -a perf -d 'how fast a ring is here'
complete -c ringcast -n __fish_use_subcommand -a help -d 'the help of a command'

complete -c ringcast -n '__fish_seen_subcommand_from help' -a 'list stat top hz record replay dump doctor perf'
complete -c ringcast -n '__fish_seen_subcommand_from stat hz record dump' -a '(__ringcast_rings)'
complete -c ringcast -n '__fish_seen_subcommand_from record replay dump' -F
complete -c ringcast -n '__fish_seen_subcommand_from perf' -a 'latency throughput wake cadence gpu'

complete -c ringcast -n '__fish_seen_subcommand_from list stat top hz record replay dump doctor perf' -l help -d 'help'
complete -c ringcast -n '__fish_seen_subcommand_from list stat top hz record replay dump doctor perf' -l format -x -a 'text json'
complete -c ringcast -n '__fish_seen_subcommand_from list' -l names -d 'what a RING argument takes'
complete -c ringcast -n '__fish_seen_subcommand_from stat' -l watch -d 'look again every second, or =SECONDS'
complete -c ringcast -n '__fish_seen_subcommand_from stat' -l prometheus -d "Prometheus' text format"
complete -c ringcast -n '__fish_seen_subcommand_from top' -l interval -x -d 'seconds from one look to the next'
complete -c ringcast -n '__fish_seen_subcommand_from top' -l once -d 'one block'
complete -c ringcast -n '__fish_seen_subcommand_from hz' -l window -x -d 'each line is of the last N frames'
complete -c ringcast -n '__fish_seen_subcommand_from hz' -l count -x -d 'end after N frames'
complete -c ringcast -n '__fish_seen_subcommand_from record' -l seconds -x -d 'end after so many seconds'
complete -c ringcast -n '__fish_seen_subcommand_from record dump' -l frames -x -d 'end after so many frames'
complete -c ringcast -n '__fish_seen_subcommand_from record' -l bytes -x -d 'end after so many bytes'
complete -c ringcast -n '__fish_seen_subcommand_from record' -l lossless -d 'an ordinary reader: the writer waits'
complete -c ringcast -n '__fish_seen_subcommand_from record' -l buffer -x -d 'bytes of memory for frames'
complete -c ringcast -n '__fish_seen_subcommand_from replay' -l name -x -d 'of the new ring'
complete -c ringcast -n '__fish_seen_subcommand_from replay' -l speed -x -d 'so many times as fast'
complete -c ringcast -n '__fish_seen_subcommand_from replay' -l fast -d 'as fast as the readers'
complete -c ringcast -n '__fish_seen_subcommand_from replay' -l from -x -d 'begin at so many seconds'
complete -c ringcast -n '__fish_seen_subcommand_from replay' -l to -x -d 'end at so many seconds'
complete -c ringcast -n '__fish_seen_subcommand_from dump' -l data -d 'the payloads too'
complete -c ringcast -n '__fish_seen_subcommand_from perf' -l size -x -d 'bytes of a frame'
complete -c ringcast -n '__fish_seen_subcommand_from perf' -l sizes -x -d 'bytes of a tensor, for gpu'
complete -c ringcast -n '__fish_seen_subcommand_from perf replay' -l readers -x -d 'how many readers'
complete -c ringcast -n '__fish_seen_subcommand_from perf' -l seconds -x -d 'how long to measure'
complete -c ringcast -n '__fish_seen_subcommand_from perf' -l gap -x -d 'milliseconds from one send to the next'
complete -c ringcast -n '__fish_seen_subcommand_from perf replay' -l capacity -x -d 'bytes of the ring'
