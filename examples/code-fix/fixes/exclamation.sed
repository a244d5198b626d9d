# about: the title ends in an exclamation mark; leave the exclamation mark out of the slug
s/^title=\$1$/title=${1%!}/
