# Every line is a point of a list, and the list names: pet, animal, fur, hunt, feline.
answer=$(grep .) && ! printf '%s\n' "$answer" | grep -qvE '^ *[*-]( |$)' && printf '%s\n' "$answer" | grep -qiE 'pet|animal|fur|hunt|feline'
