# about: no leading and no trailing dash, whatever the punctuation
s|^\(    sed -e .*-/g'\)$|\1 -e 's/^-//' -e 's/-$//'|
