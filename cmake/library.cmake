# rs_installed_library(static shared name): what the two forms of an installed library have in common.
# Users link reshard::<name> (shared) or reshard::<name>_static. Before version 1 the minor version is
# part of the shared library's name: an interface may change with it.
function(rs_installed_library static shared name)
    set_target_properties(${static} PROPERTIES EXPORT_NAME ${name}_static)
    set_target_properties(${shared} PROPERTIES EXPORT_NAME ${name} OUTPUT_NAME ${static}
        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
    foreach(target ${static} ${shared})
        target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    endforeach()
endfunction()
