# SPDX-License-Identifier: Apache-2.0
# Completion of `ringcast` for bash: commands, options, and the names of the rings that there are now.

# The options of a command; those that take a value end with "=".
_ringcast_options() {
  case $1 in
    list) echo "--names --format= --help" ;;
    stat) echo "--watch --prometheus --format= --help" ;;
    top) echo "--interval= --once --format= --help" ;;
    hz) echo "--window= --count= --format= --help" ;;
    record) echo "--seconds= --frames= --bytes= --lossless --buffer= --format= --help" ;;
    replay)
      echo "--name= --speed= --fast --readers= --from= --to= --capacity= --format= --help"
      ;;
    dump) echo "--frames= --data --format= --help" ;;
    doctor) echo "--format= --help" ;;
    perf)
      echo "--size= --sizes= --readers= --seconds= --gap= --capacity= --format= --help"
      ;;
  esac
}

# What a RING argument takes: as `list --names` has it, and NAME@PID of each ring once there is an "@".
_ringcast_rings() {
  local name pid rest
  if [[ $1 != *@* ]]; then
    ringcast list --names 2>/dev/null
    return
  fi
  while read -r name pid rest; do
    if [[ $pid == +([0-9]) ]]; then echo "${name#-}@$pid"; fi
  done < <(ringcast list 2>/dev/null) | sort -u
}

# The words that may stand where a command takes a word.
_ringcast_words() {
  case $1 in
    stat | hz) _ringcast_rings "$2" ;;
    record | dump)
      _ringcast_rings "$2"
      compgen -f -- "$2"
      ;;
    replay) compgen -f -- "$2" ;;
    perf) echo "latency throughput wake cadence gpu" ;;
    help) echo "list stat top hz record replay dump doctor perf" ;;
  esac
}

# Bash has broken the line at "=", ":" and "@" too, which stand in options and names: the words are those between blanks,
# and what bash takes for earlier words is not repeated in the answers.
_ringcast() {
  local line=${COMP_LINE:0:COMP_POINT} word kept="" at offered
  local -a words
  read -ra words <<<"$line"
  if [[ $line == *[[:blank:]] ]]; then words+=(""); fi
  local current=${words[-1]} previous=${words[-2]} command=${words[1]}
  if [ "${#words[@]}" -le 2 ]; then
    offered="list stat top hz record replay dump doctor perf help --help --version"
  elif [ "$previous" = --format ]; then
    offered="text json"
  elif [[ $current == --format=* ]]; then
    offered="--format=text --format=json"
  elif [[ $current == -* ]]; then
    offered=$(_ringcast_options "$command")
    offered=${offered//=/}
  elif [[ " $(_ringcast_options "$command") " == *" $previous= "* ]]; then
    offered="" # a number
  else
    offered=$(_ringcast_words "$command" "$current")
  fi
  for at in = : @; do
    if [[ $COMP_WORDBREAKS == *"$at"* && $current == *"$at"* ]]; then
      word=${current%"$at"*}$at
      if [ "${#word}" -gt "${#kept}" ]; then kept=$word; fi
    fi
  done
  mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$current")
  COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}

complete -F _ringcast ringcast
