# Every line is a point of a list, and the list names: dry, sand, arid, rain.
answer=$(grep .) && ! printf '%s\n' "$answer" | grep -qvE '^ *[*-]( |$)' && printf '%s\n' "$answer" | grep -qiE 'dry|sand|arid|rain'
