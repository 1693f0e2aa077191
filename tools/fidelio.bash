# Completion for bash: verbs and options as the program itself lists them, files otherwise.
_fidelio_verbs() {  # what --help of these words lists
  "$@" --help 2>/dev/null | sed -n '/^Examples:/q; s/^  \([a-z]\{1,\}\) .*/\1/p'
}
_fidelio() {
  local word=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]} verb=${COMP_WORDS[1]} words
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_fidelio_verbs "$program") help --help --version" -- "$word")
  elif [ "$COMP_CWORD" -eq 2 ] && [ "$verb" = bench ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_fidelio_verbs "$program" bench) --help" -- "$word")
  elif [[ $word == -* ]]; then
    [ "$verb" = bench ] && verb="bench ${COMP_WORDS[2]}"
    # shellcheck disable=SC2086 # two words of one
    words=$("$program" $verb --help-all 2>/dev/null | grep -o '^  -[^ ]*' | tr ',' '\n' | tr -d ' ')
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _fidelio fidelio
