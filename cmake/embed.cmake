# cmake -DOUT=FILE.c -DFILES=a.json,b.json -P embed.cmake: texts as C arrays (src/dialect/builtin.h).
string(REPLACE "," ";" FILES "${FILES}")
set(arrays "")
set(names "")
set(texts "")
set(number 0)
foreach(file ${FILES})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    string(REGEX REPLACE "(................................................................................)"
        "\\1\n" bytes "${bytes}")
    string(APPEND arrays "static const char text_${number}[] = {\n${bytes}0};\n")
    string(APPEND names "\"${name}\", ")
    string(APPEND texts "{text_${number}, sizeof text_${number} - 1}, ")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT}
"#include \"dialect/builtin.h\"\n${arrays}
const char *const rs_dialect_builtin_names[] = {${names}NULL};
const rs_dialect_text rs_dialect_builtin_texts[] = {${texts}{NULL, 0}};\n")
