{{- define "outrace.labels" -}}
app.kubernetes.io/name: outrace
app.kubernetes.io/part-of: outrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "outrace.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
