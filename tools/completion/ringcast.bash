# SPDX-License-Identifier: Apache-2.0
# Completion of `ringcast` for bash: commands and options, as the help texts have them, and the
# names of the rings that there are now.

# The commands; the measurements of perf: the words that a help text lists.
_ringcast_listed() {
  ringcast help "$1" 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p'
}

# The options of a command, a line each; those that take a value end with a blank.
_ringcast_options() {
  ringcast help "$1" 2>/dev/null | grep '^  --' | grep -oE -- '--[a-z]+( [A-Z]|)' | sed 's/ .$/ /'
  echo "--help"
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
    stat | hz | record | dump) _ringcast_rings "$2" ;;&
    record | dump | replay) compgen -f -- "$2" ;;
    perf) _ringcast_listed perf ;;
    help) _ringcast_listed help | grep -v help ;;
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
    offered="$(_ringcast_listed help) --help --version"
  elif [ "$previous" = --format ]; then
    offered="text json"
  elif [[ $current == --format=* ]]; then
    offered="--format=text --format=json"
  elif [[ $current == -* ]]; then
    offered=$(_ringcast_options "$command")
  elif _ringcast_options "$command" | grep -qxF -- "$previous "; then
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
